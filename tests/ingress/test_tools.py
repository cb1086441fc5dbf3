"""Tools in POST /v1/chat/completions: as clients send them, and as they are told of calls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.ingress.toy_text import toy_text
from actors.messages import Event, GrammarKind, Outcome, Submit
from actors.replies.formats import ReplyFormat, ToolFormat
from tests.ingress.asgi import run
from tests.ingress.calling import ONE, TOOLS, TWO, WEATHER, finish_of, gathered, message_of
from tests.ingress.harness import edge
from tests.ingress.scripted import says, stopped, tokens


@pytest.mark.parametrize(
    ("reply", "content", "names"), [(ONE, None, ["weather"]), (TWO, "I look.", ["now", "weather"])]
)
def test_calls_are_told_whole_and_streamed_alike(reply: str, content: str | None, names: list[str]) -> None:
    """I2: content null where there is none, an id for each call, finish_reason tool_calls."""

    async def check() -> None:
        async with edge(says(reply)) as at:
            unary = await at.client.chat(tools=TOOLS, rid="r").whole()
            stream = await at.client.chat(tools=TOOLS, stream=True, rid="r").whole()
            message = message_of(unary)
            assert message["content"] == content
            calls = message["tool_calls"]
            assert [one["function"]["name"] for one in calls] == names
            assert json.loads(calls[-1]["function"]["arguments"]) == {"city": "Paris", "days": 2}
            assert {one["type"] for one in calls} == {"function"}
            assert len({one["id"] for one in calls}) == len(calls)
            assert all(one["id"].startswith("call_") for one in calls)
            assert finish_of(unary) == finish_of(stream) == "tool_calls"
            told = gathered(stream)
            assert told["content"] == (content or "")
            assert [one["function"] for one in told["tool_calls"]] == [one["function"] for one in calls]
            assert [one["id"] for one in told["tool_calls"]] == [one["id"] for one in calls]

    run(check())


def test_arguments_come_as_they_are_made() -> None:
    """The name at once, then the arguments piece by piece."""

    async def check() -> None:
        async with edge(flush_s=0.0) as at:
            call = at.client.chat(tools=TOOLS, stream=True)
            await at.worker.submitted.wait()
            submit = at.worker.submits[0]
            index = 0
            for piece, awaited in (
                ('<tool_call>{"name": "weather", "arguments": {', '"name":"weather"'),
                ('"city": "Pa', '\\"city\\": \\"Pa'),
                ('ris", "days": 2', 'ris\\", \\"days\\": 2'),
            ):
                at.worker.push(tokens(submit, piece, index))
                index += len(piece)
                await call.until(awaited)
            at.worker.push(tokens(submit, "}}</tool_call>", index), stopped(submit, index + 14))
            await call.whole()
            assert finish_of(call) == "tool_calls"

    run(check())


def test_tools_are_told_to_the_template_unless_none_is_to_be_called() -> None:
    """tool_choice none: as if there were no tools; what looks like a call is text then."""

    async def check() -> None:
        async with edge(says(ONE)) as at:
            await at.client.chat("hi", tools=TOOLS).whole()
            none = await at.client.chat("hi", tools=TOOLS, tool_choice="none").whole()
            plain = await at.client.chat("hi").whole()
            with_tools, without, never = [bytes(submit.input_ids).decode() for submit in at.worker.submits]
            assert with_tools == f"tools: {json.dumps(TOOLS)}\nuser: hi\nassistant: "
            assert without == never == "user: hi\nassistant: "
            for call in (none, plain):
                assert message_of(call)["content"] == ONE
                assert "tool_calls" not in message_of(call)
                assert finish_of(call) == "stop"
            assert all(submit.grammar is None for submit in at.worker.submits)

    run(check())


def test_a_model_that_takes_no_tools_says_so() -> None:
    """A clear 400 rather than an answer that ignores them; without calls they are no matter."""

    async def check(replies: ReplyFormat, why: str) -> None:
        async with edge(says("hello"), text=replace(toy_text(), replies=replies)) as at:
            for stream in (False, True):
                refused = await at.client.chat(tools=TOOLS, stream=stream).whole()
                error = refused.json()["error"]
                assert (refused.status, error["param"], error["code"]) == (400, "tools", "unsupported_value")
                assert why in error["message"]
            assert message_of(await at.client.chat(tools=TOOLS, tool_choice="none").whole())["content"] == "hello"
            assert message_of(await at.client.chat(tools=[]).whole())["content"] == "hello"

    run(check(ReplyFormat(ToolFormat.HERMES, takes_tools=False), "has no place for tools"))
    run(check(ReplyFormat(None, takes_tools=True), "model.tool_format"))


def test_a_call_that_is_no_call_is_text() -> None:
    async def check() -> None:
        async with edge(says('<tool_call>{"nome": 1}</tool_call>')) as at:
            call = await at.client.chat(tools=TOOLS).whole()
            assert message_of(call)["content"] == '<tool_call>{"nome": 1}</tool_call>'
            assert finish_of(call) == "stop"

    run(check())


def test_a_call_that_is_cut_says_length() -> None:
    """N58: E7: its arguments are what there is."""

    def script(submit: Submit) -> list[Event]:
        text = '<tool_call>{"name": "weather", "arguments": {"city": "Pa'
        return [tokens(submit, text), replace(stopped(submit, len(text)), outcome=Outcome.LENGTH)]

    async def check() -> None:
        async with edge(script) as at:
            unary = await at.client.chat(tools=TOOLS).whole()
            stream = await at.client.chat(tools=TOOLS, stream=True).whole()
            assert message_of(unary)["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Pa'}
            assert finish_of(unary) == finish_of(stream) == "length"

    run(check())


def test_ids_of_calls_are_one_requests_own() -> None:
    """T2: the same request is told the same ids; another request, and another reply, others."""

    async def check() -> None:
        async with edge(says(TWO)) as at:

            async def ids(**fields: Any) -> list[str]:
                call = await at.client.chat(tools=TOOLS, **fields).whole()
                assert call.status == 200
                return [one["id"] for c in call.json()["choices"] for one in c["message"]["tool_calls"]]

            first = await ids(rid="a")
            assert await ids(rid="a") == first
            assert not set(first) & set(await ids(rid="b"))
            assert not set(first) & set(await ids(rid="a", seed=7))
            assert not set(await ids()) & set(await ids())
            several = await ids(n=3)
            assert len(set(several)) == 6

    run(check())


def test_what_is_demanded_is_held_by_a_grammar_and_nothing_else_is() -> None:
    async def check() -> None:
        strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
        held: list[dict[str, Any]] = [
            {"tools": TOOLS, "tool_choice": "required"},
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "now"}}},
            {"tools": [strict]},
            {"tools": TOOLS, "parallel_tool_calls": False},
            {"tools": TOOLS, "response_format": {"type": "json_object"}},
        ]
        free: list[dict[str, Any]] = [
            {"tools": TOOLS},
            {"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": True},
            {"tools": [strict], "tool_choice": "none"},
        ]
        async with edge(says("x")) as at:
            for fields in [*held, *free]:
                assert (await at.client.chat(**fields).whole()).status == 200
            grammars = [submit.grammar for submit in at.worker.submits]
            assert all(grammar and grammar.kind is GrammarKind.EBNF for grammar in grammars[: len(held)])
            assert grammars[len(held) :] == [None] * len(free)
            told = bytes(at.worker.submits[2].input_ids).decode()
            assert "strict" not in told
            none = await at.client.chat(
                tools=TOOLS, tool_choice="none", response_format={"type": "json_object"}
            ).whole()
            assert none.status == 200
            last = at.worker.submits[-1].grammar
            assert last is not None
            assert last.kind is GrammarKind.JSON_OBJECT

    run(check())


def test_an_agents_two_steps_without_a_session(tmp_path: Path) -> None:
    """The call goes back with its result, and both are rendered."""

    async def check() -> None:
        async with edge(says("It rains.")) as at:
            call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"a": "\\"<"}'}}
            messages = [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
            ]
            answer = await at.client.chat(messages, tools=TOOLS).whole()
            assert message_of(answer)["content"] == "It rains."
            prompt = bytes(at.worker.submits[0].input_ids).decode()
            told = json.dumps(call["function"])
            assert prompt.endswith(f"assistant: <tool_call>{told}</tool_call>\ntool: rain\nassistant: ")

    run(check())
