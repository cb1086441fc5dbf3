"""The text of the toy runner: one token per byte, and a chat template of plain lines. Needs no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actors.ingress.text import TextModel
from actors.model.detokenizer import Detokenizer
from actors.runner.toy import TOY_VOCAB_SIZE

TOY_VOCAB_BYTES = tuple(bytes([i]) if i < 256 else b"" for i in range(TOY_VOCAB_SIZE))
TOY_MAX_CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class LineTurn:
    close_ids: tuple[int, ...]
    input_ids: tuple[int, ...]


class LineTemplate:
    """`role: content` per line; the reply follows `assistant: `. Refuses a system message that is not the first, and
    has no place for tools."""

    def render_root(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> list[int]:
        if any(message["role"] == "system" for message in messages[1:]):
            raise ValueError("only the first message may be a system message")
        return list(self._lines(messages).encode())

    def render_turn(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> LineTurn:
        if any(message["role"] == "system" for message in messages):
            raise ValueError("a conversation that has begun takes no system message")
        return LineTurn(tuple(b"\n"), tuple(self._lines(messages).encode()))

    def _lines(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant: "


def toy_text(name: str = "toy", max_context: int = TOY_MAX_CONTEXT) -> TextModel:
    return TextModel(
        name=name,
        template=LineTemplate(),
        decoder=lambda stop: Detokenizer(TOY_VOCAB_BYTES, stop),
        vocab_size=TOY_VOCAB_SIZE,
        max_context=max_context,
        max_token_bytes=1,
        encode=lambda plain: list(plain.encode()),
        token_bytes=TOY_VOCAB_BYTES.__getitem__,
    )
