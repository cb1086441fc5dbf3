"""`langchain-openai` over the Responses API as it comes from the registry: statefully, and with everything sent."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.e2e.clients.place import Place, expected
from tests.ingress.keyed import ACME

pytestmark = pytest.mark.filterwarnings("ignore")  # Its own warnings are its own business.


def chat(place: Place, **options: Any) -> ChatOpenAI:
    address = {"base_url": f"{place.url}/v1", "api_key": SecretStr(ACME), "max_retries": 0}
    ask = {"model": "toy", "temperature": 0, "max_tokens": 12, "use_responses_api": True}
    return ChatOpenAI(**address, **ask, **options)


def test_a_conversation_by_the_previous_response(place: Place) -> None:
    """P5, K1: only what is new is sent, and the answer is the same as to the whole conversation."""
    first = chat(place).invoke("one")
    assert first.text == expected("user: one\nassistant: ", 12)
    conversation = [HumanMessage("one"), first, HumanMessage("two")]
    before = f"user: one\nassistant: {first.text}\nuser: two\nassistant: "
    for stateful in (True, False):
        second = chat(place, use_previous_response_id=stateful).invoke(conversation)
        assert second.text == expected(before, 12)
        assert second.usage_metadata is not None
        assert second.usage_metadata["output_tokens"] == 12


def test_a_stream_is_gathered(place: Place) -> None:
    """I2, E5."""
    gathered: Any = None
    for chunk in chat(place).stream("one"):
        gathered = chunk if gathered is None else gathered + chunk
    assert gathered.text == expected("user: one\nassistant: ", 12)
    assert gathered.usage_metadata["output_tokens"] == 12
    assert gathered.response_metadata["status"] == "incomplete"
