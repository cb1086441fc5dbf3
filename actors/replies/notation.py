"""Pieces of llguidance's notation. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_STYLE: dict[str, Any] = {"whitespace_flexible": False, "whitespace_pattern": "[ ]?"}
"""As `actors.runner.grammar.source` has it."""
_BARE_SLASH = re.compile(r"(\\.)|/", re.DOTALL)


class CannotHold(ValueError):
    """These demands cannot be put into one grammar. Says why."""


def json_rule(schema: Mapping[str, Any], *, lenient: bool) -> str:
    """`lenient`: what the library cannot enforce is left out instead of refused."""
    style = {**_STYLE, "lenient": True} if lenient else _STYLE
    return "%json " + json.dumps({**schema, "x-guidance": style})


def moved_schema(schema: Any, to: str) -> Any:
    """A schema as part of a larger one, where it stands at the JSON pointer `to`: its own pointers go along."""
    if isinstance(schema, list):
        return [moved_schema(item, to) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: moved_schema(item, to) for key, item in schema.items()}
    target = moved.get("$ref")
    if isinstance(target, str) and (target == "#" or target.startswith("#/")):
        moved["$ref"] = to + target[1:]
    return moved


def quoted(text: str) -> str:
    """These characters and no others."""
    if all(character.isprintable() or character == "\n" for character in text):
        return json.dumps(text, ensure_ascii=False)
    return "/" + "".join(f"\\x{{{ord(character):x}}}" for character in text) + "/"


def in_slashes(pattern: str) -> str:
    """A regular expression as it may stand between slashes, on one line."""
    escaped = _BARE_SLASH.sub(lambda found: found.group(1) or "\\/", pattern)
    return escaped.replace("\n", "\\n")
