"""`instructor` as it comes from the registry: types out of tools, of JSON with a schema, and of JSON."""

from __future__ import annotations

from enum import Enum
from typing import Any

import instructor
import openai
import pytest
from pydantic import BaseModel, Field

from tests.e2e.clients.place import Place
from tests.ingress.keyed import ACME

pytestmark = pytest.mark.filterwarnings("ignore")  # Its own warnings are its own business.
BRACE = {str(ord("}")): 100}
"""Makes a model that writes at random end its objects."""


class Colour(str, Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    """A thing in a shop."""

    colour: Colour
    count: int = Field(ge=0, le=99)


class Note(BaseModel):
    """Something that may be empty."""

    text: str | None = None


def extract(place: Place, mode: instructor.Mode, kind: Any, **options: Any) -> Any:
    plain = openai.OpenAI(base_url=f"{place.url}/v1", api_key=ACME, max_retries=0)
    client = instructor.from_openai(plain, mode=mode)
    return client.chat.completions.create(
        model="toy",
        response_model=kind,
        messages=[{"role": "user", "content": "Two red ones, please."}],
        max_tokens=400,
        max_retries=0,
        seed=5,
        **options,
    )


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA])
def test_a_typed_extraction(place: Place, mode: instructor.Mode) -> None:
    """A tool that has to be called, and a schema that the answer has: each is enforced."""
    item = extract(place, mode, Item)
    assert isinstance(item, Item)
    assert item.colour in Colour
    assert 0 <= item.count <= 99


def test_json_without_a_schema(place: Place) -> None:
    """JSON mode: any object; its type is the client's matter."""
    note = extract(place, instructor.Mode.JSON, Note, logit_bias=BRACE)
    assert isinstance(note, Note)
    assert note.text is None
