"""JSON that a model did not come to the end of, or got wrong. Pure."""

from __future__ import annotations

from typing import Any

import orjson

MAX_TRIES = 64
"""Ends of members, from the last one, behind which something may be wrong."""
_CLOSES = {"{": "}", "[": "]"}


def read_as_far_as_it_goes(text: str) -> Any:
    """The value, if it is complete; else its members up to the last one that is. None where nothing can be made of it.

    `{"a": 1, "b": ["c", 3` is `{"a": 1, "b": ["c"]}`: of a number at the end nobody knows whether it goes on.
    """
    value = _parsed(text)
    if value is None:
        ends = _ends_of_members(text)[-MAX_TRIES:]
        candidates = (_parsed(text[:end] + closes) for end, closes in reversed(ends))
        value = next((candidate for candidate in candidates if candidate is not None), None)
    return value


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _ends_of_members(text: str) -> list[tuple[int, str]]:
    """Where a member has ended, and what closes all that is open there."""
    ends: list[tuple[int, str]] = []
    open_: list[str] = []
    sign = ""
    in_string = escaped = False
    for index, character in enumerate(text):
        end = 0
        if escaped:
            escaped = False
        elif in_string:
            escaped = character == "\\"
            in_string = character != '"'
            if not in_string and (sign == ":" or open_[-1:] == ["]"]):
                end = index + 1
        elif character == '"':
            in_string = True
        elif character in _CLOSES:
            open_.append(_CLOSES[character])
            sign, end = character, index + 1
        elif character in "}]":
            if open_[-1:] != [character]:
                break
            open_.pop()
            end = index + 1
        elif character in ",:":
            sign, end = character, index if character == "," else 0
        if end:
            ends.append((end, "".join(reversed(open_))))
    return ends
