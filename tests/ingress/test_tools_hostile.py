"""Tools as nobody should send them (rule I1)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ingress.asgi import run
from tests.ingress.calling import NOW, TOOLS
from tests.ingress.harness import edge
from tests.ingress.scripted import says


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


def test_what_is_too_long_to_be_enforced_is_refused() -> None:
    """I1: as many replies as may be cost one grammar, and that has its limit."""

    async def check() -> None:
        async with edge(says("x"), max_context=2**20) as at:
            fields: dict[str, Any] = {"tool_choice": "required", **schema(description="x" * 600_000)}
            call = await at.client.chat(n=128, **fields).whole()
            assert (call.status, call.json()["error"]["param"]) == (400, "tool_choice")
            assert at.worker.submits == []
            assert (await at.client.chat(**schema(description="x" * 2000)).whole()).status == 200

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
