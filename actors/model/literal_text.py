"""Keep what users write apart from what a chat template writes (rule I1).

A template mixes both into one string, in which a user's `<|im_end|>` looks like the template's own. So such texts are
swapped for placeholders before rendering and swapped back after it, when it is known where they are: they are then
encoded as plain text. Conversations without such texts are rendered as they are.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from actors.model.tokenizer import Span, Tokenizer, valid_text

MAX_DEPTH = 64
"""Nesting of lists and objects in messages and tools."""


class TooDeep(ValueError):
    """Messages or tools are nested deeper than `MAX_DEPTH`."""


class LiteralText:
    """The texts of one conversation that only look like control tokens.

    Placeholders are letters and digits: no template trims, escapes or splits them. They are random, so that nobody
    can write one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._mark = f"x{secrets.token_hex(12)}n"
        self._texts: list[str] = []

    def hide(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages with placeholders.

        A model's own text may hold `<tool_call>` and the like, which it wrote as control tokens: in assistant messages
        only special tokens, which it could not have written, are literal.
        """
        patterns = {"assistant": self._tokenizer.special_pattern}
        return [
            self._hidden(message, patterns.get(str(message.get("role")), self._tokenizer.control_pattern), MAX_DEPTH)
            for message in messages
        ]

    def hide_value(self, value: Any) -> Any:
        """The same for anything else that a template is given (tools)."""
        return self._hidden(value, self._tokenizer.control_pattern, MAX_DEPTH)

    def reveal(self, rendered: str) -> tuple[str, list[Span]]:
        """The rendered text with the texts put back, and where they are."""
        if not self._texts:
            return rendered, []
        pieces = re.split(f"{self._mark}(\\d+)z", rendered)
        text = pieces[0]
        spans: list[Span] = []
        for number, after in zip(pieces[1::2], pieces[2::2], strict=True):
            literal = self._texts[int(number)]
            spans.append((len(text), len(text) + len(literal)))
            text += literal + after
        return text, spans

    def _hidden(self, value: Any, pattern: re.Pattern[str], depth: int) -> Any:
        if isinstance(value, str):
            return pattern.sub(self._replace, valid_text(value))
        if depth == 0 and isinstance(value, (Mapping, list, tuple)):
            raise TooDeep(f"messages and tools may be nested {MAX_DEPTH} deep")
        if isinstance(value, Mapping):
            return {
                self._hidden(key, pattern, depth - 1): self._hidden(item, pattern, depth - 1)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._hidden(item, pattern, depth - 1) for item in value]
        return value

    def _replace(self, match: re.Match[str]) -> str:
        self._texts.append(match.group())
        return f"{self._mark}{len(self._texts) - 1}z"
