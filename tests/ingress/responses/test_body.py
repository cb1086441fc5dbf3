"""Bodies of POST /v1/responses: wrong values of known fields are 400 naming the field (rule I1)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.ingress.errors import ApiError
from actors.ingress.generation import GenerationRequest
from actors.ingress.prompts import ChatPrompt
from actors.ingress.responses.body import Asked, read_response
from actors.ingress.toy_text import toy_text
from actors.messages import GrammarKind
from configs import RemoraConfig

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
CONVERSATION = "conv_" + "0" * 24


def read(**fields: Any) -> tuple[Asked, GenerationRequest]:
    tree = {"input": "hi", **fields}
    return read_response(tree, {}, text=toy_text(max_context=1000), config=RemoraConfig())


def messages(**fields: Any) -> Any:
    (prompt,) = read(**fields)[1].prompts
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("input", {"input": None}),
    ("input", {"input": 5}),
    ("input", {"input": {"role": "user"}}),
    ("input", {"input": "a\x00b"}),
    ("input[0]", {"input": ["hi"]}),
    ("input[0].type", {"input": [{}]}),
    ("input[0].type", {"input": [{"type": 3}]}),
    ("input[0].type", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    ("input[0].type", {"input": [{"type": "web_search_call"}]}),
    ("input[0].role", {"input": [{"type": "message", "content": "x"}]}),
    ("input[0].role", {"input": [{"role": "alien", "content": "x"}]}),
    ("input[0].role", {"input": [{"role": ["user"], "content": "x"}]}),
    ("input[0].content", {"input": [{"role": "user"}]}),
    ("input[0].content", {"input": [{"role": "user", "content": []}]}),
    ("input[0].content", {"input": [{"role": "user", "content": 1}]}),
    ("input[0].content[0]", {"input": [{"role": "user", "content": ["x"]}]}),
    ("input[0].content[0].type", {"input": [{"role": "user", "content": [{"text": "x"}]}]}),
    ("input[0].content[0].type", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
    ("input[0].content[0].text", {"input": [{"role": "user", "content": [{"type": "input_text"}]}]}),
    ("input[0].call_id", {"input": [{**CALL, "call_id": None}]}),
    ("input[0].name", {"input": [{**CALL, "name": ""}]}),
    ("input[0].arguments", {"input": [{**CALL, "arguments": {}}]}),
    ("input[0].call_id", {"input": [{"type": "function_call_output", "output": "x"}]}),
    ("input[0].output", {"input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}),
    ("model", {"model": "gpt-9"}),
    ("model", {"model": 5}),
    ("instructions", {"instructions": 5}),
    ("max_output_tokens", {"max_output_tokens": 0}),
    ("max_output_tokens", {"max_output_tokens": "8"}),
    ("max_output_tokens", {"max_output_tokens": 1.5}),
    ("max_output_tokens", {"max_output_tokens": 10**12}),
    ("temperature", {"temperature": 3}),
    ("temperature", {"temperature": "hot"}),
    ("top_p", {"top_p": -1}),
    ("stream", {"stream": "yes"}),
    ("store", {"store": 1}),
    ("background", {"background": "true"}),
    ("background", {"background": True, "store": False}),
    ("previous_response_id", {"previous_response_id": ""}),
    ("previous_response_id", {"previous_response_id": 7}),
    ("previous_response_id", {"previous_response_id": "resp_x", "store": False}),
    ("conversation", {"conversation": "x"}),
    ("conversation", {"conversation": 7}),
    ("conversation.id", {"conversation": {}}),
    ("conversation.id", {"conversation": {"id": 3}}),
    ("conversation.id", {"conversation": {"id": "mine"}}),
    ("conversation", {"conversation": CONVERSATION, "store": False}),
    ("conversation", {"conversation": CONVERSATION, "previous_response_id": "resp_x"}),
    ("metadata", {"metadata": []}),
    ("metadata.a", {"metadata": {"a": 1}}),
    ("metadata", {"metadata": {"k" * 65: "v"}}),
    ("metadata.a", {"metadata": {"a": "v" * 513}}),
    ("metadata", {"metadata": {str(n): "" for n in range(17)}}),
    ("truncation", {"truncation": "auto"}),
    ("truncation", {"truncation": 1}),
    ("include", {"include": "all"}),
    ("include[1]", {"include": ["reasoning.encrypted_content", "everything"]}),
    ("include[0]", {"include": [5]}),
    ("top_logprobs", {"top_logprobs": 21}),
    ("top_logprobs", {"top_logprobs": "2"}),
    ("prompt", {"prompt": {"id": "pmpt_1"}}),
    ("reasoning", {"reasoning": "high"}),
    ("reasoning.effort", {"reasoning": {"effort": 3}}),
    ("text", {"text": "json"}),
    ("text.format", {"text": {"format": "json"}}),
    ("text.format.type", {"text": {"format": {"type": "xml"}}}),
    ("text.format.type", {"text": {"format": {"type": 5}}}),
    ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "a"}}}),
    ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "a", "schema": 5}}}),
    ("text.format.name", {"text": {"format": {"type": "json_schema", "name": 5, "schema": SCHEMA}}}),
    ("text.format.strict", {"text": {"format": {"type": "json_schema", "strict": 5, "schema": SCHEMA}}}),
    ("text.verbosity", {"text": {"verbosity": 5}}),
    ("tools", {"tools": {}}),
    ("tools[0]", {"tools": ["f"]}),
    ("tools[0].type", {"tools": [{"type": "web_search"}]}),
    ("tools[0].type", {"tools": [{}]}),
    ("tool_choice", {"tool_choice": "web"}),
    ("tool_choice", {"tool_choice": 5}),
    ("tool_choice.type", {"tool_choice": {"type": "file_search"}}),
    ("tool_choice.name", {"tool_choice": {"type": "function"}}),
    ("prompt_cache_key", {"prompt_cache_key": 5}),
    ("safety_identifier", {"safety_identifier": 5}),
    ("user", {"user": 5}),
    ("service_tier", {"service_tier": 5}),
    ("parallel_tool_calls", {"parallel_tool_calls": "no"}),
    ("max_tool_calls", {"max_tool_calls": -1}),
]


@pytest.mark.parametrize(("param", "fields"), WRONG, ids=[f"{param} {fields}"[:80] for param, fields in WRONG])
def test_wrong_values_name_the_field(param: str, fields: dict[str, Any]) -> None:
    """I1: in this route's words, in `param` and in the text."""
    with pytest.raises(ApiError) as caught:
        read(**fields)
    assert caught.value.param == param
    assert caught.value.status in (400, 404)
    assert "response_format" not in caught.value.message
    assert "max_completion_tokens" not in caught.value.message


def test_fields_of_other_routes_are_unknown_here() -> None:
    """I1: and unknown fields are ignored, whatever they hold."""
    _, request = read(
        n=5, max_tokens="x", max_completion_tokens=[], response_format=7, messages=0, functions=1, logprobs="?"
    )
    assert (request.choices, request.sampling.max_tokens, request.grammar) == (1, None, None)


def test_what_is_asked_for_is_said_back() -> None:
    asked, request = read(
        instructions="be brief", metadata={"a": "b"}, max_output_tokens=9, temperature=0.5, top_p=0.0, user="u"
    )
    echo = asked.echo
    assert (echo["instructions"], echo["metadata"], echo["max_output_tokens"]) == ("be brief", {"a": "b"}, 9)
    assert (echo["temperature"], echo["top_p"], echo["user"]) == (0.5, 0.0, "u")
    assert request.sampling.max_tokens == 9
    assert asked.store


def test_structured_output() -> None:
    """G01: `text.format` is what `response_format` is to chats."""
    form = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
    asked, request = read(text={"format": form, "verbosity": "low"})
    assert request.grammar is not None
    assert request.grammar.kind is GrammarKind.JSON_SCHEMA
    assert asked.echo["text"] == {"format": form, "verbosity": "low"}
    assert read(text={"format": {"type": "json_object"}})[1].grammar is not None
    assert read(text={"format": {"type": "text"}})[1].grammar is None


def test_items_become_messages() -> None:
    """Calls belong to the message that they stand behind; reasoning is not shown again; a developer is the system."""
    items = [
        {"role": "developer", "content": "be kind"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "reasoning", "summary": [], "encrypted_content": "zzz"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        CALL,
        {**CALL, "call_id": "d"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "function_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "2"}]},
        CALL,
    ]
    system, user, assistant, first, second, alone = messages(input=items)
    assert system == {"role": "system", "content": "be kind"}
    assert user == {"role": "user", "content": "a\nb"}
    assert (assistant["content"], [call["id"] for call in assistant["tool_calls"]]) == ("c", ["c", "d"])
    assert (first["role"], first["tool_call_id"], first["content"]) == ("tool", "c", "1")
    assert (second["tool_call_id"], second["content"]) == ("d", "2")
    assert (alone["role"], alone["content"], len(alone["tool_calls"])) == ("assistant", "", 1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = sorted({param.partition(".")[0].partition("[")[0] for param, _ in WRONG})


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), json_values, max_size=4))
def test_no_body_is_anything_but_read_or_refused(fields: dict[str, Any]) -> None:
    """I1: nothing a client sends makes the reader fail otherwise."""
    with suppress(ApiError):
        read(**fields)
