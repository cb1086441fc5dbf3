"""Tools in POST /v1/chat/completions: as clients send them, and as they are told of calls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.ingress.replies.formats import ReplyFormat, ToolFormat
from actors.ingress.toy_text import TOY_VOCAB_BYTES, toy_text
from actors.messages import Event, GrammarKind, Outcome, Submit
from actors.runner.script import ScriptRunner
from configs import EngineConfig
from tests.ingress.asgi import Call, run
from tests.ingress.harness import edge
from tests.ingress.local import cluster
from tests.ingress.scripted import says, stopped, tokens

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city.", "parameters": CITY},
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
ENGINE = EngineConfig(check_invariants=True, grammar_timeout_s=60.0)
"""The first grammar starts a process, which takes its time on a busy machine."""
ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
TWO = 'I look.\n<tool_call>{"name": "now", "arguments": {}}</tool_call>\n' + ONE


def message_of(call: Call) -> dict[str, Any]:
    assert call.status == 200, call.body
    message: dict[str, Any] = call.json()["choices"][0]["message"]
    return message


def gathered(call: Call) -> dict[str, Any]:
    """A stream's deltas put together as clients do it: a call's parts by their index."""
    message: dict[str, Any] = {"role": None, "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    for event in call.events[:-1]:
        for choice in event["choices"]:
            delta = choice["delta"]
            message["role"] = delta.get("role", message["role"])
            for name in ("content", "reasoning_content"):
                if delta.get(name):
                    message[name] = message.get(name, "") + delta[name]
            for piece in delta.get("tool_calls", ()):
                index = piece["index"]
                if index not in calls:
                    assert set(piece) == {"index", "id", "type", "function"}
                    calls[index] = {key: value for key, value in piece.items() if key != "index"}
                    calls[index]["function"] = dict(piece["function"])
                else:
                    assert set(piece) == {"index", "function"}
                    calls[index]["function"]["arguments"] += piece["function"]["arguments"]
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message


def finish_of(call: Call) -> str:
    if "text/event-stream" in call.headers["content-type"]:
        finishes = [event["choices"][0]["finish_reason"] for event in call.events[:-1]]
        return str(next(reason for reason in finishes if reason))
    return str(call.json()["choices"][0]["finish_reason"])


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


def schema(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": fields}}]}


def deep(levels: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(levels):
        made = {"properties": {"a": made}}
    return made


NAMED: dict[str, Any] = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nobody"}}}
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("tools", {"tools": "weather"}),
    ("tools", {"tools": {"type": "function"}}),
    ("tools", {"tools": [NOW] * 1025}),
    ("tools[0]", {"tools": ["weather"]}),
    ("tools[0]", {"tools": [None]}),
    ("tools[0].type", {"tools": [{}]}),
    ("tools[0].type", {"tools": [{"type": 7, "function": {"name": "f"}}]}),
    ("tools[0].type", {"tools": [{"type": "web_search"}]}),
    ("tools[0].function", {"tools": [{"type": "function"}]}),
    ("tools[0].function", {"tools": [{"type": "function", "function": "f"}]}),
    ("tools[1].function.name", {"tools": [NOW, {"type": "function", "function": {}}]}),
    ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": 7}}]}),
    ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": ""}}]}),
    ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
    ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "<x>\n"}}]}),
    ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "x" * 129}}]}),
    ("tools[1].function.name", {"tools": [NOW, NOW]}),
    ("tools[0].function.description", {"tools": [{"type": "function", "function": {"name": "f", "description": 1}}]}),
    ("tools[0].function.strict", {"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}),
    ("tools[0].function.parameters", {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}),
    ("tools[0].function.parameters", schema(**deep(80))),
    ("tools[0].function.parameters.type", schema(type="array")),
    ("tools[0].function.parameters.properties", schema(properties=[])),
    ("tools[0].function.parameters.required", schema(required=[1])),
    ("tools[0].function.parameters.required", schema(required="a")),
    ("tools", schema(description="x" * 2**20)),
    ("tool_choice", {"tools": TOOLS, "tool_choice": "always"}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": 7}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": ["none"]}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice.type", {"tools": TOOLS, "tool_choice": {}}),
    ("tool_choice.type", {"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}),
    ("tool_choice.function", {"tools": TOOLS, "tool_choice": {"type": "function", "function": "now"}}),
    ("tool_choice.function.name", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {}}}),
    ("tool_choice.function.name", NAMED),
    ("parallel_tool_calls", {"tools": TOOLS, "parallel_tool_calls": "no"}),
    ("functions", {"functions": [{"name": "f"}]}),
    ("function_call", {"function_call": {"name": "f"}}),
    ("chat_template_kwargs", {"chat_template_kwargs": []}),
    ("chat_template_kwargs", {"chat_template_kwargs": {f"a{n}": 1 for n in range(65)}}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"a": "x" * 20_000}}),
    ("chat_template_kwargs.messages", {"chat_template_kwargs": {"messages": []}}),
    ("chat_template_kwargs.bos_token", {"chat_template_kwargs": {"bos_token": "x"}}),
    ("chat_template_kwargs.a b", {"chat_template_kwargs": {"a b": 1}}),
    ("reasoning_effort", {"reasoning_effort": "enormous"}),
    ("reasoning_effort", {"reasoning_effort": 3}),
]


@pytest.mark.parametrize(("param", "fields"), WRONG)
def test_a_wrong_value_is_400_naming_the_field(param: str, fields: dict[str, Any]) -> None:
    """I1: nothing reaches a worker."""

    async def check() -> None:
        async with edge(says("x")) as at:
            call = await at.client.chat(**fields).whole()
            assert call.status == 400, call.body
            assert call.json()["error"]["param"] == param
            assert at.worker.submits == []

    run(check())


def test_odd_messages_about_calls_are_400() -> None:
    """I1: what a client sends back of an earlier answer."""
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("messages[0].tool_calls", {"tool_calls": {}}),
        ("messages[0].tool_calls[0]", {"tool_calls": [7]}),
        ("messages[0].tool_calls[0].function", {"tool_calls": [{"type": "function"}]}),
        ("messages[0].tool_calls[0].function.name", {"tool_calls": [{"function": {"name": 1}}]}),
        (
            "messages[0].tool_calls[0].function.arguments",
            {"tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        ),
        ("messages[0].reasoning_content", {"reasoning_content": 7}),
        ("messages[0].content", {"reasoning_content": ""}),
    ]

    async def check() -> None:
        async with edge(says("x")) as at:
            for param, fields in wrong:
                call = await at.client.chat([{"role": "assistant", **fields}]).whole()
                assert (call.status, call.json()["error"]["param"]) == (400, param)
            missing = await at.client.chat([{"role": "tool", "content": "x"}]).whole()
            assert missing.json()["error"]["param"] == "messages[0].tool_call_id"

    run(check())
