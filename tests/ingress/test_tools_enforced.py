"""Tools with real workers: calls that must be made are made, by a model that writes at random behind a real grammar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actors.ingress.toy_text import TOY_VOCAB_BYTES, toy_text
from actors.replies.formats import ToolFormat
from actors.runner.script import ScriptRunner
from configs import EngineConfig
from tests.ingress.asgi import run
from tests.ingress.calling import ONE, TOOLS, WEATHER, finish_of, gathered, message_of
from tests.ingress.local import cluster

ENGINE = EngineConfig(check_invariants=True, grammar_timeout_s=60.0)
"""The first grammar starts a process, which takes its time on a busy machine."""


def test_a_replayed_turn_names_its_calls_as_before(tmp_path: Path) -> None:
    """T2: also where the second answer comes from the store, streamed or not."""

    async def check() -> None:
        async with cluster(tmp_path, engine=ENGINE) as at:
            fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "seed": 3, "max_tokens": 300}
            for named in ({"session": {"id": "s", "create": True}, "rid": "one"}, {"rid": "two"}):
                first = await at.client.chat(**fields, **named).whole()
                again = await at.client.chat(**fields, **named).whole()
                stream = await at.client.chat(**fields, **named, stream=True).whole()
                assert message_of(first)["tool_calls"]
                assert again.json()["replayed"] is True
                assert message_of(again) == message_of(first)
                assert gathered(stream)["tool_calls"] == message_of(first)["tool_calls"]

    run(check())


@pytest.mark.parametrize("kind", [ToolFormat.HERMES, ToolFormat.QWEN_XML])
def test_whoever_must_call_calls(tmp_path: Path, kind: ToolFormat) -> None:
    """tool_choice required and named: with a real grammar before a model that writes at random."""

    async def check() -> None:
        async with cluster(tmp_path, engine=ENGINE, text=toy_text(tools=kind)) as at:
            for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
                for seed in range(1 if kind is ToolFormat.QWEN_XML else 2):
                    fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": choice, "seed": seed, "max_tokens": 3000}
                    call = await at.client.chat(**fields).whole()
                    message = message_of(call)
                    assert finish_of(call) == "tool_calls"
                    assert message["content"] is None
                    for one in message["tool_calls"]:
                        arguments = json.loads(one["function"]["arguments"])
                        if one["function"]["name"] == "now":
                            assert arguments == {}
                            assert choice == "required"
                        else:
                            assert arguments["city"] in ("Paris", "Rome")
                            assert arguments["days"] in range(1, 10)

    run(check(), 60.0)


def test_a_call_cut_anywhere_is_told_alike_in_both_ways(tmp_path: Path) -> None:
    """N58: for every max_tokens both ways give the same calls and the same finish_reason: `length` while the arguments
    are cut, `tool_calls` once complete."""

    async def check() -> None:
        async with cluster(tmp_path, engine=ENGINE) as at:
            complete = 0
            ways: list[Any] = ["required", {"type": "function", "function": {"name": "weather"}}]
            for number, choice in enumerate(ways):
                for most in range(8 + 16 * number, 121, 32):
                    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": choice, "max_tokens": most}
                    fields["rid"] = f"{most} {choice == 'required'}"
                    unary = await at.client.chat(**fields, seed=5, temperature=0).whole()
                    stream = await at.client.chat(**fields, seed=5, temperature=0, stream=True).whole()
                    told = message_of(unary)
                    assert finish_of(unary) == finish_of(stream)
                    assert gathered(stream).get("tool_calls") == told.get("tool_calls")
                    if finish_of(unary) == "tool_calls":
                        complete += 1
                        assert all(json.loads(one["function"]["arguments"]) for one in told["tool_calls"])
                    else:
                        assert finish_of(unary) == "length"
            assert complete

    run(check(), 60.0)


def test_a_worker_without_grammars_refuses_what_it_cannot_enforce(tmp_path: Path) -> None:
    """Rather than an answer that may be anything: the field that asks for it is named."""

    def runner() -> ScriptRunner:
        return ScriptRunner(list(ONE.encode()), vocab_bytes=TOY_VOCAB_BYTES, eos_id=257)

    async def check() -> None:
        async with cluster(tmp_path, runner=runner) as at:
            free = await at.client.chat(tools=TOOLS).whole()
            assert message_of(free)["tool_calls"][0]["function"]["name"] == "weather"
            held = await at.client.chat(tools=TOOLS, tool_choice="required").whole()
            error = held.json()["error"]
            assert (held.status, error["reason"], error["param"]) == (400, "invalid", "tool_choice")
            assert "knows no grammars" in error["message"]

    run(check())


def test_a_strict_schema_that_cannot_be_enforced_is_refused(tmp_path: Path) -> None:
    async def check() -> None:
        async with cluster(tmp_path, engine=ENGINE) as at:
            odd = {"type": "object", "properties": {}, "unevaluatedProperties": False}
            tool = {"type": "function", "function": {"name": "odd", "parameters": odd, "strict": True}}
            call = await at.client.chat(tools=[tool], max_tokens=20).whole()
            error = call.json()["error"]
            assert (call.status, error["reason"], error["param"]) == (400, "grammar_invalid", "tools")
            assert "unevaluatedProperties" in error["message"]

    run(check())


def test_a_session_goes_on_with_the_result_alone(tmp_path: Path) -> None:
    """S1, K1: nothing is rendered again: the model's own call stays as it was generated."""

    async def check() -> None:
        async with cluster(tmp_path, engine=ENGINE) as at:
            session = {"id": "s"}
            one = await at.client.chat(
                "hi", tools=TOOLS, tool_choice="required", max_tokens=400, session={**session, "create": True}
            ).whole()
            call = message_of(one)["tool_calls"][0]
            before = one.json()["usage"]
            result = [{"role": "tool", "tool_call_id": call["id"], "content": "rain"}]
            two = await at.client.chat(result, tools=TOOLS, max_tokens=8, session=session).whole()
            assert two.status == 200, two.body
            usage = two.json()["usage"]
            held = before["prompt_tokens"] + before["completion_tokens"]
            assert usage["prompt_tokens_details"]["cached_tokens"] in (held, held - 1)
            assert usage["prompt_tokens"] - held <= len("\ntool: rain\nassistant: ")
            assert two.json()["session"]["turn"] == 2

    run(check())
