"""Whatever stands in a body of Anthropic's API: it is taken, or refused with a status below 500 (rule I1)."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from actors.ingress.anthropic_body import read_message
from actors.ingress.errors import ApiError
from actors.ingress.toy_text import toy_text
from actors.ingress.validate import parse_object
from configs import RemoraConfig

WORDS = st.text("ab1 \n\x00é🙂", max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(["text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image", ""]) | JSON


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects with some of these fields; or anything."""
    return st.fixed_dictionaries({}, optional=fields) | JSON


TEXTS = st.lists(objects(type=TYPES, text=WORDS), max_size=3) | JSON
BLOCKS = objects(
    type=TYPES, text=WORDS, id=WORDS, name=WORDS, input=JSON, tool_use_id=WORDS, content=TEXTS, thinking=WORDS
)
ROLES = st.sampled_from(["user", "assistant", "system"]) | JSON
MESSAGES = st.lists(objects(role=ROLES, content=st.lists(BLOCKS, max_size=3) | JSON), max_size=4) | JSON
TOOLS = st.lists(objects(name=WORDS, input_schema=objects(type=TYPES), type=WORDS, strict=JSON), max_size=3) | JSON
CHOICE = objects(type=st.sampled_from(["auto", "any", "tool", "none"]) | JSON, name=WORDS)
BODIES = st.fixed_dictionaries(
    {"messages": MESSAGES},
    optional={
        "max_tokens": st.integers(0, 100) | JSON,
        "system": TEXTS,
        "tools": TOOLS,
        "tool_choice": CHOICE,
        "stop_sequences": JSON,
        "thinking": objects(type=st.sampled_from(["enabled", "disabled"]) | JSON, budget_tokens=JSON),
        "output_config": objects(format=objects(type=st.just("json_schema") | JSON, schema=JSON)),
        "metadata": objects(user_id=JSON),
        "session": objects(id=JSON, create=JSON),
        "temperature": JSON,
        "top_k": JSON,
        "stream": JSON,
    },
)


@given(BODIES)
def test_whatever_a_body_holds_it_is_taken_or_refused(body: dict[str, Any]) -> None:
    """I1: as it comes over the wire; what is taken can be rendered."""
    text = toy_text()
    try:
        request = read_message(parse_object(json.dumps(body).encode()), {}, text=text, config=RemoraConfig())
    except ApiError as error:
        assert error.status in (400, 404)  # noqa: PT017 (either outcome is right)
        return
    (prompt,) = request.prompts
    try:
        assert prompt.render(text, None).ids["input_ids"]
    except ValueError as refused:
        assert str(refused)  # noqa: PT017
