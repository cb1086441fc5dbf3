"""The text of the toy runner: one token per byte, and a chat template of plain lines. Needs no files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actors.ingress.text import TextModel
from actors.model.chat_template import Ends
from actors.model.detokenizer import Detokenizer
from actors.replies.formats import ReplyFormat, ToolFormat, find_reasoning
from actors.runner.toy import TOY_VOCAB_SIZE

TOY_VOCAB_BYTES = tuple(bytes([i]) if i < 256 else b"" for i in range(TOY_VOCAB_SIZE))
TOY_MAX_CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class LineTurn:
    close_ids: tuple[int, ...]
    input_ids: tuple[int, ...]


class LineTemplate:
    """`role: content` per line; the reply follows `assistant: `. Tools are named before all, in one line; a reply that
    called some is told with its calls. `thinking`, a variable, begins the reply with reasoning. Refuses a system
    message that is not the first."""

    def render_root(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        ends: Ends = Ends.REPLY,
    ) -> list[int]:
        if any(message["role"] == "system" for message in messages[1:]):
            raise ValueError("only the first message may be a system message")
        known = f"tools: {json.dumps(list(tools))}\n" if tools else ""
        return list((known + self._lines(messages, extra, ends)).encode())

    def render_turn(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        ends: Ends = Ends.REPLY,
    ) -> LineTurn:
        if any(message["role"] == "system" for message in messages):
            raise ValueError("a conversation that has begun takes no system message")
        return LineTurn(tuple(b"\n"), tuple(self._lines(messages, extra, ends).encode()))

    def _lines(self, messages: Sequence[Mapping[str, Any]], extra: Mapping[str, Any] | None, ends: Ends) -> str:
        told = "".join(f"{message['role']}: {_content(message)}\n" for message in messages)
        if ends is Ends.CONTINUED:
            return told.removesuffix("\n")
        begins = "<think>" if (extra or {}).get("thinking") else ""
        return told + f"assistant: {begins}" if ends is Ends.REPLY else told


def _content(message: Mapping[str, Any]) -> str:
    calls = [json.dumps(call["function"]) for call in message.get("tool_calls") or ()]
    return str(message["content"]) + "".join(f"<tool_call>{call}</tool_call>" for call in calls)


def toy_text(
    name: str = "toy", max_context: int = TOY_MAX_CONTEXT, tools: ToolFormat = ToolFormat.HERMES, reasoning: str = "off"
) -> TextModel:
    """`tools`, `reasoning`: how replies are read, and what they are held to where they must call tools."""
    return TextModel(
        name=name,
        template=LineTemplate(),
        decoder=lambda stop, marks=None: Detokenizer(TOY_VOCAB_BYTES, stop, marks),
        vocab_size=TOY_VOCAB_SIZE,
        max_context=max_context,
        max_token_bytes=1,
        encode=lambda plain: list(plain.encode()),
        token_bytes=TOY_VOCAB_BYTES.__getitem__,
        replies=ReplyFormat(tools, find_reasoning(reasoning, ""), takes_tools=True),
    )
