"""Tools and reasoning in the Responses API."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.ingress.toy_text import TOY_VOCAB_BYTES, toy_text
from actors.replies.formats import ReplyFormat
from actors.runner.script import ScriptRunner
from configs import EngineConfig
from tests.ingress.asgi import run
from tests.ingress.harness import edge
from tests.ingress.responses.calls import Asker, kinds
from tests.ingress.responses.test_responses import asking
from tests.ingress.scripted import says

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {"type": "function", "name": "weather", "description": "Of a city.", "parameters": CITY}
NOW: dict[str, Any] = {"type": "function", "name": "now"}
ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TWO = 'I look.\n<tool_call>{"name": "now", "arguments": {}}</tool_call>\n' + ONE


@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_items_of_their_own(stream: bool) -> None:
    """I2: text, then a call each, with ids to answer to; streamed alike, and the same when asked for again."""

    async def check() -> None:
        async with edge(says(TWO)) as at:
            api = Asker(at.client)
            made = await api.ask(tools=[WEATHER, NOW], stream=stream)
            text, now, weather = made["output"]
            assert (text["type"], text["content"][0]["text"].strip()) == ("message", "I look.")
            assert [(call["type"], call["name"]) for call in (now, weather)] == [
                ("function_call", "now"),
                ("function_call", "weather"),
            ]
            assert json.loads(weather["arguments"]) == {"city": "Paris"}
            assert len({now["call_id"], weather["call_id"], now["id"], weather["id"]}) == 4
            assert {item["status"] for item in made["output"]} == {"completed"}
            assert (made["status"], made["tools"]) == ("completed", [WEATHER, NOW])
            assert (await api.get(made["id"])).json() == made
            told = await api.get(made["id"], "?stream=true")
            assert kinds(told).count("response.function_call_arguments.done") == 2
            done = [event["item"] for event in told.events if event["type"] == "response.output_item.done"]
            assert done == made["output"]

    run(check())


def test_a_result_goes_on_from_its_call(tmp_path: Path) -> None:
    """S1: what the model wrote is history as it is; only the result is new."""

    async def check() -> None:
        script = ScriptRunner(list(ONE.encode()), vocab_bytes=TOY_VOCAB_BYTES, eos_id=256, kv_tokens=8192)
        async with asking(tmp_path, runner=lambda: script) as (_, api):
            first = await api.ask("weather?", tools=[WEATHER], max_output_tokens=200)
            (call,) = first["output"]
            result = [{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}]
            second = await api.ask(result, previous_response_id=first["id"], tools=[WEATHER])
            behind = "\ntool: sunny\nassistant: "  # The end of the reply is a token of its own.
            assert second["usage"]["input_tokens"] == first["usage"]["total_tokens"] + len(behind)
            status, error = await api.refused(result, previous_response_id=first["id"], tools=[NOW])
            assert (status, error["param"]) == (400, "tools")
            none = await api.ask(result, previous_response_id=first["id"])
            assert none["tools"] == []

    run(check())


def test_a_demanded_call_is_enforced(tmp_path: Path) -> None:
    """G01: `required`, or one tool by its name: by a grammar."""

    async def check() -> None:
        engine = EngineConfig(check_invariants=True, grammar_timeout_s=60.0)
        async with asking(tmp_path, engine=engine) as (_, api):
            for choice in ("required", {"type": "function", "name": "weather"}):
                made = await api.ask(tools=[WEATHER], tool_choice=choice, max_output_tokens=200)
                call = made["output"][0]
                assert (call["type"], call["name"]) == ("function_call", "weather")
                assert json.loads(call["arguments"])["city"] in ("Paris", "Rome")
                assert made["tool_choice"] == choice

    run(check())


def test_reasoning_is_an_item_before_the_answer() -> None:
    async def check() -> None:
        text = toy_text(reasoning="think")
        async with edge(says("<think>hm\n</think>\n\nyes"), text=text) as at:
            api = Asker(at.client)
            call = await api.start(stream=True, reasoning={"effort": "low"}).whole()
            reasoning, message = call.events[-1]["response"]["output"]
            assert (reasoning["type"], reasoning["content"][0]["text"].strip()) == ("reasoning", "hm")
            assert message["content"][0]["text"].strip() == "yes"
            assert "response.reasoning_text.delta" in kinds(call)
            assert call.events[-1]["response"]["reasoning"]["effort"] == "low"

    run(check())


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("tools[0].name", {"tools": [{"type": "function"}]}),
    ("tools[0].name", {"tools": [{"type": "function", "name": "a b"}]}),
    ("tools[1].name", {"tools": [NOW, NOW]}),
    ("tools[0].parameters", {"tools": [{**NOW, "parameters": []}]}),
    ("tools[0].strict", {"tools": [{**NOW, "strict": 1}]}),
    ("tools[1].type", {"tools": [NOW, {"type": "web_search"}]}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice.name", {"tools": [NOW], "tool_choice": {"type": "function", "name": "other"}}),
    ("tool_choice.type", {"tools": [NOW], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}),
    ("reasoning.effort", {"reasoning": {"effort": "utmost"}}),
    ("chat_template_kwargs", {"chat_template_kwargs": 5}),
]


@pytest.mark.parametrize(("param", "fields"), WRONG)
def test_wrong_values_name_the_field(param: str, fields: dict[str, Any]) -> None:
    """I1."""

    async def check() -> None:
        async with edge(says("x")) as at:
            status, error = await Asker(at.client).refused(**fields)
            assert (status, error["param"]) == (400, param)
            assert at.worker.submits == []

    run(check())


def test_a_model_that_takes_no_tools_says_so() -> None:
    async def check() -> None:
        text = replace(toy_text(), replies=ReplyFormat())
        async with edge(says("x"), text=text) as at:
            status, error = await Asker(at.client).refused(tools=[NOW])
            assert (status, error["param"]) == (400, "tools")
            assert (await Asker(at.client).ask(tools=[NOW], tool_choice="none"))["status"] == "completed"

    run(check())
