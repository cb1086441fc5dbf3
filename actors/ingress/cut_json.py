"""JSON that a model did not come to the end of. Pure."""

from __future__ import annotations

from typing import Any

import orjson

_CLOSES = {"{": "}", "[": "]"}


def read_as_far_as_it_goes(text: str) -> Any:
    """The value, if it is complete; else its members up to the last one that is. None where nothing can be made of it.

    `{"a": 1, "b": ["c", 3` is `{"a": 1, "b": ["c"]}`: of a number at the end nobody knows whether it goes on.
    """
    whole = _parsed(text)
    return _parsed(_cut(text)) if whole is None else whole


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _cut(text: str) -> str:
    """Up to the last place where a member had ended, and what closes what was open there."""
    open_: list[str] = []
    keep, closes, sign = 0, "", ""
    in_string = escaped = False
    for index, character in enumerate(text):
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
                if sign == ":" or (open_ and open_[-1] == "]"):
                    keep, closes = index + 1, "".join(reversed(open_))
        elif character == '"':
            in_string = True
        elif character == ":":
            sign = character
        elif character in _CLOSES:
            open_.append(_CLOSES[character])
            sign = character
            keep, closes = index + 1, "".join(reversed(open_))
        elif character in "}]":
            if not open_ or open_.pop() != character:
                break
            keep, closes = index + 1, "".join(reversed(open_))
        elif character == "," and open_:
            sign = character
            keep, closes = index, "".join(reversed(open_))
    return text[:keep] + closes
