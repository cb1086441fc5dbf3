"""JSON that a model did not come to the end of, or got wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterator
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
        ends = _last_ends(text)
        candidates = (_parsed(text[:end] + closes) for end, closes in reversed(ends))
        value = next((candidate for candidate in candidates if candidate is not None), None)
    return value


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _last_ends(text: str) -> list[tuple[int, str]]:
    """Where the last members have ended, and what closes all that is open there: written out for these only, since it
    may be as long as the text."""
    skipped = sum(1 for _ in _ends_of_members(text)) - MAX_TRIES
    found = enumerate(_ends_of_members(text))
    return [(end, "".join(reversed(open_))) for number, (end, open_) in found if number >= skipped]


def _ends_of_members(text: str) -> Iterator[tuple[int, list[str]]]:
    """Where each member has ended, and the signs that close what is open there, innermost last."""
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
            yield end, open_
