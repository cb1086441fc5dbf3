"""One reply, told in two ways: by the model, and by a client that sends it back."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.replies.alike import Said, canonical_call, said_in
from actors.replies.parts import CallArguments, CallBegins, ReasoningPart, TextPart

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(max_size=5), values, max_size=4)


@given(given=arguments, indent=st.sampled_from([None, 0, 2]), ascii=st.booleans())
def test_how_a_client_writes_arguments_does_not_matter(given: dict[str, Any], indent: int | None, ascii: bool) -> None:
    """S1: blanks, escapes and the order of names are the client's."""
    written = json.dumps(dict(reversed(given.items())), indent=indent, ensure_ascii=ascii)
    assert canonical_call("f", f" {written}\n") == canonical_call("f", json.dumps(given))


@given(one=arguments, other=arguments)
def test_what_they_say_does(one: dict[str, Any], other: dict[str, Any]) -> None:
    """T6."""
    alike = canonical_call("f", json.dumps(one)) == canonical_call("f", json.dumps(other))
    assert alike == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))
    assert canonical_call("f", json.dumps(one)) != canonical_call("g", json.dumps(one))


@pytest.mark.parametrize("broken", ['{"a":1', "[" * 100_000, "nonsense", "9" * 5000])
def test_arguments_that_are_no_json_are_what_they_are(broken: str) -> None:
    """I1: a call that was cut, or is hostile, is equal to itself alone."""
    assert canonical_call("f", broken) == canonical_call("f", f"{broken} ")
    assert canonical_call("f", broken) != canonical_call("f", broken[:-1])


def test_no_arguments_are_empty_ones() -> None:
    assert canonical_call("f", "") == canonical_call("f", " {} ") != canonical_call("f", "null")


def test_the_parts_of_a_reply_are_put_together() -> None:
    parts = [
        ReasoningPart("hm"),
        TextPart(" I "),
        TextPart("look.\n"),
        CallBegins(0, "", "a"),
        CallArguments(0, '{"x":'),
        CallArguments(0, " 1}"),
        CallBegins(1, "", "b"),
    ]
    assert said_in(parts) == Said("I look.", "hm", ('["a",{"x":1}]', '["b",{}]'))


@pytest.mark.parametrize(("opens", "closes"), ["[]", ('{"a":', "}")])
def test_no_depth_of_arguments_breaks_who_compares_them(opens: str, closes: str) -> None:
    """I1: somewhere lies what can just be read, and is too deep to be written."""
    limit = sys.getrecursionlimit()
    for depth in range(limit - 150, limit + 2):
        deep = f"{opens * depth}1{closes * depth}"
        assert canonical_call("f", deep) == canonical_call("f", f" {deep} ")
