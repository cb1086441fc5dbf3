"""From a grammar of ours to the notation of llguidance. Imported only where that is installed."""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher, grammar_from

from actors.messages import GrammarKind

_STYLE: Any = {"whitespace_flexible": False, "whitespace_pattern": "[ ]?"}
"""At most one space between the parts of a JSON text: a small model that may write white space writes nothing else."""


def library_source(kind: str, text: str) -> str:
    """Raises ValueError for a text that is no grammar of that kind; not everything that is wrong is found here."""
    match GrammarKind(kind):
        case GrammarKind.JSON_SCHEMA:
            return str(LLMatcher.grammar_from_json_schema(text, overrides=_STYLE))
        case GrammarKind.JSON_OBJECT:
            return str(LLMatcher.grammar_from_json_schema('{"type": "object"}', overrides=_STYLE))
        case GrammarKind.REGEX:
            return str(LLMatcher.grammar_from_regex(text))
        case GrammarKind.EBNF:
            return str(grammar_from("grammar", text))
        case GrammarKind.CHOICE:
            return str(LLMatcher.grammar_from_regex("|".join(map(_literally, json.loads(text)))))


def _literally(choice: str) -> str:
    """A regular expression for one text, whatever it holds."""
    return "".join(f"\\x{{{ord(character):x}}}" for character in choice)
