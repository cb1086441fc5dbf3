"""Whether two tellings of a reply are of the same one: as a model wrote it, and as a client sends it back. Pure.

Clients that take a call's arguments apart write them anew: with other blanks, other escapes, their names in another
order. Nor does it matter what they call a call. None of this is part of what was said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from actors.replies.parts import CallArguments, CallBegins, Part, ReasoningPart, TextPart


@dataclass(frozen=True, slots=True)
class Said:
    """`calls`: each as `canonical_call` has it. Blanks around text and reasoning do not count."""

    text: str
    reasoning: str
    calls: tuple[str, ...]


def said_in(parts: Iterable[Part]) -> Said:
    """What all parts of a reply amount to."""
    text, reasoning = "", ""
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for part in parts:
        if isinstance(part, TextPart):
            text += part.text
        elif isinstance(part, ReasoningPart):
            reasoning += part.text
        elif isinstance(part, CallBegins):
            names[part.number] = part.name
        elif isinstance(part, CallArguments):
            arguments[part.number] = arguments.get(part.number, "") + part.text
    calls = tuple(canonical_call(name, arguments.get(number, "")) for number, name in names.items())
    return Said(text.strip(), reasoning.strip(), calls)


def canonical_call(name: str, arguments: str) -> str:
    """The same for all ways to write a call of this tool with these arguments. `arguments` that are no JSON, a call
    that was cut, are what they are."""
    try:
        return _plain(name, json.loads(arguments) if arguments.strip() else {})
    except (ValueError, RecursionError):  # What can just be read may be too deep to be written.
        return _plain(name, [arguments.strip()])  # No arguments are a list.


def _plain(name: str, arguments: Any) -> str:
    return json.dumps([name, arguments], sort_keys=True, separators=(",", ":"))
