"""Whole conversations met with a session's history: what of one is there already (rules S1, S3, T6).

A client that always sends everything names its turns by what led to them: `stem~anything`, where the stem stands for
all messages before the reply. What such a turn continues from is a turn of the right stem whose reply reads as the
client has it, and calls the same tools. The reply's own tokens are gone on with then, never the client's text of them.
Whatever the client has edited leads to another stem or another reply, and so to a branch of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from actors.engine.history import History
from actors.messages import Notation, Submit, TurnOf
from actors.records import TurnRecord
from actors.replies.alike import said_in
from actors.replies.formats import ReplyFormat, ToolFormat
from actors.replies.reader import reply_reader
from actors.replies.reasoning import Tags

STEM_ENDS = "~"
REASONING_BEGINS, REASONING_ENDS = b"<think>", b"</think>"
"""What stands around reasoning, which clients leave out, or tell apart from the reply that they send back."""
NO_MARKS: Mapping[int, bytes] = MappingProxyType({})
_LAST_IDS = 8
"""In these, at the end of what a turn was asked with, the tag that begins reasoning is found."""


def followed(turn: TurnOf, history: History, vocab_bytes: Sequence[bytes]) -> str | None:
    """rid of the turn that a whole conversation goes on from: the last of those that fit. None: it begins anew."""
    if not turn.stem:
        return None
    alike = history.named_like(turn.stem + STEM_ENDS)
    way = _Way.of(turn.notation) if turn.notation is not None and alike else None
    return next((one.rid for one in reversed(alike) if _reads(one, turn, way, vocab_bytes)), None)


def named_otherwise(submit: Submit, history: History) -> TurnRecord | None:
    """A turn to which the client gave the name of this whole conversation, and which came after other messages: the
    stem is no part of what the client calls its turn (rule T2)."""
    if submit.turn is None or not submit.turn.whole or not submit.idempotent:
        return None
    if submit.batch in history:
        return history.turn(submit.batch)
    alike = history.named_like(ending=STEM_ENDS + submit.batch)
    return next((one for one in alike if len(one.rid) == len(submit.rid) and one.rid != submit.rid), None)


@dataclass(frozen=True, slots=True)
class _Way:
    """A `Notation`, read once: its tools may be megabytes, and many turns may be alike."""

    format: ReplyFormat
    tools: list[Any]
    marks: Mapping[int, bytes]

    @classmethod
    def of(cls, notation: Notation) -> _Way:
        tags = Tags(*notation.reasoning) if notation.reasoning else None
        marks = {token: text.encode() for token, text in notation.marks}
        return cls(ReplyFormat(ToolFormat(notation.calls), tags), json.loads(notation.tools or "[]"), marks)


def _reads(turn: TurnRecord, said: TurnOf, way: _Way | None, vocab_bytes: Sequence[bytes]) -> bool:
    """Whether a turn's output is the reply that a client tells of. Blanks around it do not count."""
    if way is not None:
        return _calls_alike(turn, said, way, vocab_bytes)
    text = _text(turn.output_ids, vocab_bytes)
    if turn.matched is not None and (at := text.rfind(turn.matched.encode())) >= 0:
        text = text[:at]
    reply, reasoning = said.reply.encode().strip(), said.reasoning.encode().strip()
    if not reasoning and text.strip() == reply:
        return True
    thought, answer = _told_apart(text.strip(), _text(turn.input_ids[-_LAST_IDS:], vocab_bytes).rstrip())
    return thought is not None and answer == reply and reasoning in (b"", thought)


def _calls_alike(turn: TurnRecord, said: TurnOf, way: _Way, vocab_bytes: Sequence[bytes]) -> bool:
    """The same for a reply that calls tools: both are read by the model's format, as the client was told."""
    text = _text(turn.output_ids, vocab_bytes, way.marks)
    if turn.matched is not None and (at := text.rfind(turn.matched.encode())) >= 0:
        text = text[:at]
    prompt = _text(turn.input_ids[-_LAST_IDS:], vocab_bytes, way.marks).rstrip()
    tags = way.format.reasoning
    thinking = tags is not None and prompt.endswith(tags.begins.encode())
    reader = reply_reader(way.format, way.tools, thinking=thinking)
    told = said_in([*reader.push(text.decode(errors="replace")), *reader.finish()])
    same_thought = said.reasoning.strip() in ("", told.reasoning)
    return same_thought and (told.text, told.calls) == (said.reply.strip(), said.calls)


def _told_apart(text: bytes, prompt: bytes) -> tuple[bytes | None, bytes]:
    """(reasoning, answer) as clients are shown them; None: there is no reasoning, or nothing else. `prompt`: how it
    ended."""
    if not text.startswith(REASONING_BEGINS) and not prompt.endswith(REASONING_BEGINS):
        return None, text
    thought, ends, answer = text.removeprefix(REASONING_BEGINS).partition(REASONING_ENDS)
    return (thought.strip(), answer.strip()) if ends else (None, text)


def _text(ids: Sequence[int], vocab_bytes: Sequence[bytes], marks: Mapping[int, bytes] = NO_MARKS) -> bytes:
    return b"".join(marks.get(token, vocab_bytes[token]) for token in ids)
