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
REASONING_ENDS = b"</think>"
"""What stands between reasoning, which clients leave out, and the reply that they send back."""


def followed(turn: TurnOf, history: History, vocab_bytes: Sequence[bytes]) -> str | None:
    """rid of the turn that a whole conversation goes on from: the last of those that fit. None: it begins anew."""
    if not turn.stem:
        return None
    reply = turn.reply.encode().strip()
    alike = history.named_like(turn.stem + STEM_ENDS)
    return next((one.rid for one in reversed(alike) if _reads(one, reply, vocab_bytes)), None)


def named_otherwise(submit: Submit, history: History) -> TurnRecord | None:
    """A turn to which the client gave the name of this whole conversation, and which came after other messages: the
    stem is no part of what the client calls its turn (rule T2)."""
    if submit.turn is None or not submit.turn.whole or not submit.idempotent:
        return None
    if submit.batch in history:
        return history.turn(submit.batch)
    alike = history.named_like(ending=STEM_ENDS + submit.batch)
    return next((one for one in alike if len(one.rid) == len(submit.rid) and one.rid != submit.rid), None)


def _reads(turn: TurnRecord, reply: bytes, vocab_bytes: Sequence[bytes]) -> bool:
    """Whether a turn's output, its reasoning aside, is this text. Blanks around it do not count."""
    text = b"".join(vocab_bytes[token] for token in turn.output_ids)
    if turn.matched is not None:
        text = text[: max(0, text.rfind(turn.matched.encode()))]
    text = text.strip()
    if text == reply:
        return True
    before = text[: len(text) - len(reply)].rstrip()
    return bool(reply) and text.endswith(reply) and before.endswith(REASONING_ENDS)
