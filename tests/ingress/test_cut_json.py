"""Arguments of a tool call that was cut: what is complete of them is kept, and nothing is made up."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.ingress.cut_json import read_as_far_as_it_goes

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "b": ["c", 3', {"a": 1, "b": ["c"]}),
        ('{"a": "x"', {"a": "x"}),
        ('{"a": 1, "b"', {"a": 1}),
        ('{"a": 1, "b":', {"a": 1}),
        ('{"a": "half of it', {}),
        ('{"a": {"b": "c"}', {"a": {"b": "c"}}),
        ('{"a": "br}]\\"ace", "b": tr', {"a": 'br}]"ace'}),
        ('{"a": 12', {}),
        ("{", {}),
        ("", None),
        ("nonsense", None),
        ("[1, 2}", [1]),
        ('{"a": 1, "b": 1e999, "c": 2}', {"a": 1}),
        ('{"a": 1, "b": nonsense, "c": [2]}', {"a": 1}),
    ],
)
def test_what_is_complete_is_kept(text: str, value: Any) -> None:
    """N58."""
    assert read_as_far_as_it_goes(text) == value


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=4), st.data())
def test_wherever_it_is_cut_it_is_a_part_of_the_whole(value: dict[str, Any], data: st.DataObject) -> None:
    """N58: members of it, as they are; all of them when nothing is cut."""
    text = orjson.dumps(value).decode()
    assert read_as_far_as_it_goes(text) == value
    cut = read_as_far_as_it_goes(text[: data.draw(st.integers(1, len(text)))])
    assert within(cut, value)


def within(part: Any, whole: Any) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and within(item, whole[key]) for key, item in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) <= len(whole) and all(map(within, part, whole))
    return bool(part == whole)


def test_what_is_nested_without_end_is_read_in_no_time() -> None:
    """I1: a reply that is nothing but brackets costs as much as any other of its length."""
    began = time.process_time()
    assert read_as_far_as_it_goes('{"a": 1, "b": ' + "[" * 40_000) is None
    assert time.process_time() - began < 3.0
