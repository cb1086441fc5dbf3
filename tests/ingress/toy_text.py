"""A model's text for tests: one token per byte, as the toy runner has it, and a chat template of plain lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actors.ingress.text import TextModel
from actors.model.detokenizer import Detokenizer

VOCAB_SIZE = 260
VOCAB_BYTES = tuple(bytes([i]) if i < 256 else b"" for i in range(VOCAB_SIZE))
MODEL = "toy"


@dataclass(frozen=True)
class LineTurn:
    close_ids: tuple[int, ...]
    input_ids: tuple[int, ...]


class LineTemplate:
    """`role: content` per line; the reply follows `assistant: `. Refuses a system message that is not the first."""

    def render_root(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        if any(message["role"] == "system" for message in messages[1:]):
            raise ValueError("only the first message may be a system message")
        return list(self._lines(messages).encode())

    def render_turn(self, messages: Sequence[Mapping[str, Any]]) -> LineTurn:
        return LineTurn(tuple(b"\n"), tuple(self._lines(messages).encode()))

    def _lines(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant: "


def toy_text(max_context: int = 8192) -> TextModel:
    return TextModel(
        name=MODEL,
        template=LineTemplate(),
        decoder=lambda stop: Detokenizer(VOCAB_BYTES, stop),
        vocab_size=VOCAB_SIZE,
        max_context=max_context,
        max_token_bytes=1,
    )
