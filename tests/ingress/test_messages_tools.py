"""Tools in /v1/messages: told to the model, read from its reply, demanded of it, and their results told back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.ingress.toy_text import toy_text
from actors.replies.formats import PLAIN
from configs import EngineConfig
from tests.ingress.asgi import Call, Client, run
from tests.ingress.harness import edge
from tests.ingress.local import cluster
from tests.ingress.scripted import says
from tests.ingress.test_messages_blocks import gathered

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "name": "weather",
    "description": "Tells it.",
    "input_schema": SCHEMA,
    "cache_control": {"type": "ephemeral"},
}
NOW = {
    "type": "custom",
    "name": "now",
    "input_schema": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = [WEATHER, NOW]
ASKED = [{"role": "user", "content": "How is it in Oslo?"}]
SAID = (
    'Wait.<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>\n'
    '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
)


def ask(client: Client, messages: Any = ASKED, **fields: Any) -> Call:
    return client.start("POST", "/v1/messages", {"messages": messages, "max_tokens": 200, "tools": TOOLS, **fields})


def calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(block["name"], block["input"]) for block in message["content"] if block["type"] == "tool_use"]


def test_calls_are_blocks_whole_and_streamed() -> None:
    """I2, T2: with ids of their own, that stay when the request is sent again."""

    async def check() -> None:
        async with edge(says(SAID)) as at:
            whole = (await ask(at.client, rid="r").whole()).json()
            stream = await ask(at.client, rid="r", stream=True).whole()
        assert calls(whole) == [("weather", {"city": "Oslo"}), ("now", {})]
        assert whole["content"][0] == {"type": "text", "text": "Wait."}
        assert whole["stop_reason"] == "tool_use"
        ids = [block["id"] for block in whole["content"][1:]]
        assert len(set(ids)) == 2
        assert gathered(stream.events) == whole["content"]
        assert stream.events[-2]["delta"]["stop_reason"] == "tool_use"
        prompt = bytes(at.worker.submits[0].input_ids).decode()
        assert '"parameters": {"type": "object"' in prompt
        assert "cache_control" not in prompt

    run(check())


def test_without_tools_a_call_is_text() -> None:
    """Nor with `tool_choice` none: the model is not told of them then."""

    async def check() -> None:
        async with edge(says(SAID)) as at:
            for options in ({"tools": []}, {"tool_choice": {"type": "none"}}):
                message = (await ask(at.client, **options).whole()).json()
                assert message["content"] == [{"type": "text", "text": SAID}]
                assert message["stop_reason"] == "end_turn"
            assert b"weather" not in bytes(at.worker.submits[1].input_ids)

    run(check())


def test_results_are_told_to_the_model_as_its_template_has_it() -> None:
    """The call and its result, in their places."""

    async def check() -> None:
        async with edge(says("It rains.")) as at:
            use = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}
            result = {"type": "tool_result", "tool_use_id": "c1", "content": "rain", "is_error": False}
            messages = [
                *ASKED,
                {"role": "assistant", "content": [{"type": "text", "text": "Wait."}, use]},
                {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
            ]
            message = (await ask(at.client, messages).whole()).json()
            assert message["stop_reason"] == "end_turn"
            prompt = bytes(at.worker.submits[0].input_ids).decode()
        assert 'assistant: Wait.<tool_call>{"name": "weather", ' in prompt
        assert prompt.endswith("tool: rain\nuser: So?\nassistant: ")

    run(check())


def test_thinking_is_a_block_before_the_text() -> None:
    async def check() -> None:
        async with edge(says("<think>Hm. So.</think>Rain.")) as at:
            at.ingress.text = toy_text(reasoning="think")
            whole = (await ask(at.client).whole()).json()
            stream = await ask(at.client, stream=True).whole()
        thought = {"type": "thinking", "thinking": "Hm. So.", "signature": ""}
        assert whole["content"] == gathered(stream.events) == [thought, {"type": "text", "text": "Rain."}]

    run(check())


@pytest.mark.parametrize(
    ("choice", "named"),
    [({"type": "any"}, ("weather", "now")), ({"type": "tool", "name": "weather"}, ("weather",))],
)
def test_a_call_can_be_demanded(tmp_path: Path, choice: dict[str, Any], named: tuple[str, ...]) -> None:
    """G01: of a model that says anything at all, by its grammar; whole and streamed alike."""

    async def check() -> None:
        patient = EngineConfig(check_invariants=True, grammar_timeout_s=60.0)
        async with cluster(tmp_path, engine=patient) as at:
            options = {"tool_choice": {**choice, "disable_parallel_tool_use": True}, "seed": 3, "max_tokens": 400}
            strict = [{**tool, "strict": True} for tool in TOOLS]
            whole = (await ask(at.client, tools=strict, **options).whole()).json()
            stream = await ask(at.client, tools=strict, stream=True, **options).whole()
        assert whole["stop_reason"] == "tool_use", whole
        ((name, given),) = calls(whole)
        assert name in named
        assert given == {} if name == "now" else given["city"] in ("Oslo", "Rome")
        assert [block["input"] for block in gathered(stream.events)] == [given]

    run(check(), limit_s=60.0)  # A busy machine may take long to start the process that compiles.


def test_tokens_of_tools_are_counted() -> None:
    async def check() -> None:
        async with edge(says("x")) as at:
            with_tools = await at.client.post("/v1/messages/count_tokens", {"messages": ASKED, "tools": TOOLS})
            await ask(at.client).whole()
            assert with_tools.json()["input_tokens"] == len(at.worker.submits[0].input_ids)

    run(check())


def test_a_model_without_tools_says_so() -> None:
    """I1: and names the field."""

    async def check() -> None:
        async with edge(says("x")) as at:
            at.ingress.text = replace(at.ingress.text, replies=PLAIN)
            call = await ask(at.client).whole()
        assert (call.status, call.json()["error"]["param"]) == (400, "tools")

    run(check())
