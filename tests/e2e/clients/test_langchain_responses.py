"""`langchain-openai` over the Responses API as it comes from the registry: statefully, and with everything sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from actors.runner.toy import toy_continuation
from tests.ingress.web import Web, serving

pytestmark = pytest.mark.filterwarnings("ignore")  # Its own warnings are its own business.


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with serving(tmp_path, workers=2, step_s=0.001) as made:
        yield made


def chat(web: Web, **options: Any) -> ChatOpenAI:
    address = {"base_url": f"{web.url}/v1", "api_key": SecretStr("none"), "max_retries": 0}
    ask = {"model": "toy", "temperature": 0, "max_tokens": 12, "use_responses_api": True}
    return ChatOpenAI(**address, **ask, **options)


def expected(prompt: str, count: int = 12) -> str:
    return bytes(toy_continuation(list(prompt.encode()), count)).decode()


def test_a_conversation_by_the_previous_response(web: Web) -> None:
    """P5, K1: only what is new is sent, and the answer is the same as to the whole conversation."""
    first = chat(web).invoke("one")
    assert first.text == expected("user: one\nassistant: ")
    conversation = [HumanMessage("one"), first, HumanMessage("two")]
    before = f"user: one\nassistant: {first.text}\nuser: two\nassistant: "
    for stateful in (True, False):
        second = chat(web, use_previous_response_id=stateful).invoke(conversation)
        assert second.text == expected(before)
        assert second.usage_metadata is not None
        assert second.usage_metadata["output_tokens"] == 12


def test_a_stream_is_gathered(web: Web) -> None:
    """I2, E5."""
    gathered: Any = None
    for chunk in chat(web).stream("one"):
        gathered = chunk if gathered is None else gathered + chunk
    assert gathered.text == expected("user: one\nassistant: ")
    assert gathered.usage_metadata["output_tokens"] == 12
    assert gathered.response_metadata["status"] == "incomplete"
