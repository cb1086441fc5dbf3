"""Whole conversations met with a session's history: what of one is there already (rules S1, S3, T6).

A client that always sends everything names its turns by what led to them: `stem~anything`, where the stem stands for
all messages before the reply. What such a turn continues from is a turn of the right stem whose reply reads as the
client has it. The reply's own tokens are gone on with then, never the client's text of them. Whatever the client has
edited leads to another stem or another reply, and so to a branch of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from actors.engine.history import History
from actors.messages import Submit, TurnOf
from actors.records import TurnRecord

STEM_ENDS = "~"
REASONING_BEGINS, REASONING_ENDS = b"<think>", b"</think>"
"""What stands around reasoning, which clients leave out, or tell apart from the reply that they send back."""
_LAST_IDS = 8
"""In these, at the end of what a turn was asked with, the tag that begins reasoning is found."""


def followed(turn: TurnOf, history: History, vocab_bytes: Sequence[bytes]) -> str | None:
    """rid of the turn that a whole conversation goes on from: the last of those that fit. None: it begins anew."""
    if not turn.stem:
        return None
    alike = history.named_like(turn.stem + STEM_ENDS)
    return next((one.rid for one in reversed(alike) if _reads(one, turn, vocab_bytes)), None)


def named_otherwise(submit: Submit, history: History) -> TurnRecord | None:
    """A turn to which the client gave the name of this whole conversation, and which came after other messages: the
    stem is no part of what the client calls its turn (rule T2)."""
    if submit.turn is None or not submit.turn.whole or not submit.idempotent:
        return None
    if submit.batch in history:
        return history.turn(submit.batch)
    alike = history.named_like(ending=STEM_ENDS + submit.batch)
    return next((one for one in alike if len(one.rid) == len(submit.rid) and one.rid != submit.rid), None)


def _reads(turn: TurnRecord, said: TurnOf, vocab_bytes: Sequence[bytes]) -> bool:
    """Whether a turn's output is the reply that a client tells of. Blanks around it do not count."""
    text = _text(turn.output_ids, vocab_bytes)
    if turn.matched is not None and (at := text.rfind(turn.matched.encode())) >= 0:
        text = text[:at]
    reply, reasoning = said.reply.encode().strip(), said.reasoning.encode().strip()
    if not reasoning and text.strip() == reply:
        return True
    thought, answer = _told_apart(text.strip(), _text(turn.input_ids[-_LAST_IDS:], vocab_bytes).rstrip())
    return thought is not None and answer == reply and reasoning in (b"", thought)


def _told_apart(text: bytes, prompt: bytes) -> tuple[bytes | None, bytes]:
    """(reasoning, answer) as clients are shown them; None: there is no reasoning, or nothing else. `prompt`: how it
    ended."""
    if not text.startswith(REASONING_BEGINS) and not prompt.endswith(REASONING_BEGINS):
        return None, text
    thought, ends, answer = text.removeprefix(REASONING_BEGINS).partition(REASONING_ENDS)
    return (thought.strip(), answer.strip()) if ends else (None, text)


def _text(ids: Sequence[int], vocab_bytes: Sequence[bytes]) -> bytes:
    return b"".join(vocab_bytes[token] for token in ids)
