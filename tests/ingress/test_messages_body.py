"""The body of /v1/messages: what it becomes, and which field is wrong (rule I1)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from actors.ingress.anthropic_body import read_message
from actors.ingress.errors import ApiError
from actors.ingress.generation import GenerationRequest
from actors.ingress.prompts import ChatPrompt
from actors.ingress.toy_text import toy_text
from actors.messages import GrammarKind
from configs import RemoraConfig

USER = {"role": "user", "content": "hi"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]}


def read(**fields: Any) -> GenerationRequest:
    tree = {"messages": [USER], "max_tokens": 10, **fields}
    return read_message(tree, {}, text=toy_text(max_context=1000), config=RemoraConfig())


def chat(**fields: Any) -> list[dict[str, Any]]:
    (prompt,) = read(**fields).prompts
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def said(content: Any, role: str = "user") -> dict[str, Any]:
    """`messages` with this content, which a user may follow."""
    return {"messages": [{"role": role, "content": content}, *([USER] if role == "assistant" else [])]}


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("max_tokens", {"max_tokens": None}),
    ("max_tokens", {"max_tokens": -1}),
    ("max_tokens", {"max_tokens": 1.5}),
    ("max_tokens", {"max_tokens": "10"}),
    ("max_tokens", {"max_tokens": 10**12}),
    ("model", {"model": 5}),
    ("messages", {"messages": None}),
    ("messages", {"messages": []}),
    ("messages", {"messages": {}}),
    ("messages[0]", {"messages": ["hi"]}),
    ("messages[0].role", {"messages": [{"content": "x"}]}),
    ("messages[0].role", {"messages": [{"role": 1, "content": "x"}]}),
    ("messages[0].role", {"messages": [{"role": "tool", "content": "x"}]}),
    ("messages[1].content", {"messages": [USER, {"role": "assistant", "content": "It is "}]}),
    ("messages[1].content", {"messages": [USER, {"role": "assistant", "content": [USE]}]}),
    ("thinking", {"thinking": {"type": "enabled"}, "messages": [USER, {"role": "assistant", "content": "It is"}]}),
    ("messages[0].content", said(None)),
    ("messages[0].content", said([])),
    ("messages[0].content", said(7)),
    ("messages[0].content", said("a\x00b")),
    ("messages[0].content[0]", said(["x"])),
    ("messages[0].content[0].type", said([{"text": "x"}])),
    ("messages[0].content[0].type", said([{"type": ["text"]}])),
    ("messages[0].content[0].text", said([{"type": "text"}])),
    ("messages[0].content[0].text", said([{"type": "text", "text": 5}])),
    ("messages[0].content[1].type", said([{"type": "text", "text": "x"}, {"type": "image", "source": {}}])),
    ("messages[0].content[0].type", said([{"type": "document", "source": {}}])),
    ("messages[0].content[0].type", said([USE])),
    ("messages[0].content[0].tool_use_id", said([{"type": "tool_result", "content": "x"}])),
    ("messages[0].content[0].content", said([{**RESULT, "content": 5}])),
    ("messages[0].content[0].content[0].type", said([{**RESULT, "content": [{"type": "image"}]}])),
    ("messages[0].content[0].type", said([RESULT], "assistant")),
    ("messages[0].content[0].id", said([{**USE, "id": 5}], "assistant")),
    ("messages[0].content[0].name", said([{**USE, "name": None}], "assistant")),
    ("messages[0].content[0].input", said([{**USE, "input": "{}"}], "assistant")),
    ("messages[0].content[0].thinking", said([{"type": "thinking", "signature": ""}], "assistant")),
    ("system", {"system": 5}),
    ("system", {"system": []}),
    ("system[0]", {"system": ["x"]}),
    ("system[0].type", {"system": [{"type": "image"}]}),
    ("system[1].text", {"system": [{"type": "text", "text": "x"}, {"type": "text", "text": None}]}),
    ("stop_sequences", {"stop_sequences": "x"}),
    ("stop_sequences", {"stop_sequences": ["x"] * 17}),
    ("stop_sequences[1]", {"stop_sequences": ["x", ""]}),
    ("stop_sequences[0]", {"stop_sequences": [5]}),
    ("temperature", {"temperature": "hot"}),
    ("temperature", {"temperature": -0.1}),
    ("top_p", {"top_p": 2}),
    ("top_k", {"top_k": -2}),
    ("top_k", {"top_k": 1.5}),
    ("stream", {"stream": "yes"}),
    ("metadata", {"metadata": "me"}),
    ("metadata.user_id", {"metadata": {"user_id": 5}}),
    ("thinking", {"thinking": True}),
    ("thinking.type", {"thinking": {}}),
    ("thinking.type", {"thinking": {"type": "deeply"}}),
    ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": "all"}}),
    ("tools", {"tools": "x"}),
    ("tools[0]", {"tools": ["x"]}),
    ("tools[0].name", {"tools": [{"input_schema": {}}]}),
    ("tools[0].name", {"tools": [{"name": "get weather", "input_schema": {}}]}),
    ("tools[0].input_schema", {"tools": [{"name": "a"}]}),
    ("tools[0].input_schema", {"tools": [{"name": "a", "input_schema": []}]}),
    ("tools[0].input_schema.type", {"tools": [{"name": "a", "input_schema": {"type": "array"}}]}),
    ("tools[0].description", {"tools": [{"name": "a", "input_schema": {}, "description": 5}]}),
    ("tools[0].strict", {"tools": [{"name": "a", "input_schema": {}, "strict": "very"}]}),
    ("tools[0].type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ("tools[0].type", {"tools": [{"type": 5, "name": "a"}]}),
    ("tools[1].name", {"tools": [{"name": "a", "input_schema": {}}] * 2}),
    ("tool_choice", {"tool_choice": "auto"}),
    ("tool_choice.type", {"tool_choice": {}}),
    ("tool_choice.type", {"tool_choice": {"type": "required"}}),
    ("tool_choice.type", {"tool_choice": {"type": "any"}}),
    ("tool_choice.name", {"tool_choice": {"type": "tool", "name": "b"}, "tools": [{"name": "a", "input_schema": {}}]}),
    ("tool_choice.disable_parallel_tool_use", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}),
    ("output_config", {"output_config": []}),
    ("output_config.format", {"output_config": {"format": "json"}}),
    ("output_config.format.type", {"output_config": {"format": {"type": "xml"}}}),
    ("output_config.format.schema", {"output_config": {"format": {"type": "json_schema"}}}),
    ("container", {"container": "c"}),
    ("mcp_servers", {"mcp_servers": [{"type": "url"}]}),
    ("session", {"session": "s"}),
    ("session.id", {"session": {}}),
]


@pytest.mark.parametrize(("param", "fields"), WRONG)
def test_a_wrong_value_names_its_field(param: str, fields: dict[str, Any]) -> None:
    """I1: down to the block."""
    with pytest.raises(ApiError) as caught:
        read(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param in caught.value.message


def test_another_model_is_not_found() -> None:
    with pytest.raises(ApiError) as caught:
        read(model="claude-sonnet")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


def test_what_the_api_does_not_know_is_not_looked_at() -> None:
    """I1: fields of other APIs, marks for a cache that works by itself, and what only steers another service."""
    read(
        n=5,
        stop=7,
        user=[],
        response_format="xml",
        logprobs="many",
        stream_options=3,
        max_completion_tokens="x",
        service_tier="auto",
        inference_geo="eu",
        cache_control={"type": "ephemeral"},
        mcp_servers=[],
        anything={"at": "all"},
    )
    block = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}, "citations": None}
    assert chat(messages=[{"role": "user", "content": [block]}], system=[block]) == [
        {"role": "system", "content": "x"},
        {"role": "user", "content": "x"},
    ]


def test_sampling_is_what_was_asked_for() -> None:
    sampling = read(temperature=0.5, top_p=0.9, top_k=40, stop_sequences=["a", "b"], max_tokens=0).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 40)
    assert (sampling.stop, sampling.max_tokens) == (("a", "b"), 0)


def test_system_may_be_text_or_blocks_or_a_message() -> None:
    """Blocks are joined by line breaks."""
    blocks = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]
    assert chat(system="Be\nbrief.") == chat(system=blocks) == [{"role": "system", "content": "Be\nbrief."}, USER]
    assert chat(messages=[{"role": "system", "content": "Be\nbrief."}, USER]) == chat(system=blocks)


def test_neighbours_of_one_role_are_one_message() -> None:
    """As Anthropic's API says; templates that want roles to alternate depend on it."""
    assert chat(messages=[USER, {"role": "user", "content": "there"}]) == [{"role": "user", "content": "hi\nthere"}]
    parts = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": [USE]}]
    told = chat(messages=[USER, *parts, {"role": "user", "content": [RESULT]}])[1]
    assert (told["content"], [call["id"] for call in told["tool_calls"]]) == ("a", ["toolu_1"])


def test_a_tools_result_is_a_message_of_its_own() -> None:
    """With the name of the tool, which some templates want."""
    thought = {"type": "thinking", "thinking": "Look it up.", "signature": "x"}
    hidden = {"type": "redacted_thinking", "data": "…"}
    text = {"type": "text", "text": "So?"}
    messages = [
        USER,
        {"role": "assistant", "content": [thought, hidden, {"type": "text", "text": "One moment."}, USE]},
        {"role": "user", "content": [RESULT, {"type": "tool_result", "tool_use_id": "toolu_2"}, text]},
    ]
    function = {"name": "weather", "arguments": '{"city":"Oslo"}'}
    assert chat(messages=messages) == [
        USER,
        {
            "role": "assistant",
            "content": "One moment.",
            "reasoning_content": "Look it up.",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "name": "weather", "content": "rain"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": ""},
        {"role": "user", "content": "So?"},
    ]


@pytest.mark.parametrize(("kind", "thinks"), [("enabled", True), ("adaptive", True), ("disabled", False)])
def test_thinking_is_for_the_template_to_know(kind: str, thinks: bool) -> None:
    (prompt,) = read(thinking={"type": kind, "budget_tokens": 2000}).prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.extra == {"enable_thinking": thinks, "thinking": thinks}


def test_an_output_format_is_a_grammar() -> None:
    """G01: and is not combined with another."""
    wanted = {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"}
    request = read(output_config=wanted)
    assert request.grammar is not None
    assert (request.grammar.kind, request.grammar_field) == (GrammarKind.JSON_SCHEMA, "output_config.format.schema")
    with pytest.raises(ApiError) as caught:
        read(output_config=wanted, guided_regex="a+")
    assert caught.value.param == "output_config.format"


def test_what_a_template_goes_through_counts_though_it_may_not_show_it() -> None:
    """I1: much of it is not rendered where it would hold up every stream: many messages, thoughts, arguments."""
    many = [{"role": role, "content": ""} for _ in range(200) for role in ("user", "assistant")]
    thought = {"type": "thinking", "thinking": "t" * 10_000, "signature": ""}
    call = {**USE, "input": {"city": "c" * 10_000}}
    for messages in ([*many, USER], [*many[:1], *said([thought], "assistant")["messages"]]):
        (prompt,) = read(messages=messages).prompts
        assert (prompt.size_bytes < 10, prompt.work > 10_000) == (True, True)
    (prompt,) = read(**said([call], "assistant")).prompts
    assert prompt.work > 10_000


@pytest.mark.parametrize("content", ["x" * 100, [{**USE, "input": {}}]], ids=["texts", "calls"])
def test_many_neighbours_take_no_time(content: Any) -> None:
    """I1: they are put together once. One by one this would take half a minute of everybody's."""
    role = "user" if isinstance(content, str) else "assistant"
    began = time.process_time()
    told = chat(messages=[*[{"role": role, "content": content}] * 90_000, {"role": "user", "content": "x"}])
    assert time.process_time() - began < 5.0
    assert len(told) <= 2
