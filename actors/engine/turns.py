"""From "continue that turn with this" to a prompt: where a turn stands in its session's history (rules S3, S4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.engine.context import Context
from actors.engine.matching import followed
from actors.engine.request import Request, Verdict
from actors.engine.sessions import Session
from actors.messages import Outcome, Reason, SessionMode, Submit, TokenIds, TurnOf
from actors.records import TurnRecord


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn that holds its session's lease.

    Its context is `keep` tokens of the parent's, then `input_ids`, then what it generates.
    """

    session: Session
    number: int
    parent: str | None
    keep: int
    input_ids: TokenIds
    dropped: tuple[str, ...]

    def record(self, request: Request, verdict: Verdict) -> TurnRecord:
        """What the store keeps of this turn once it ended in `verdict`."""
        if verdict.outcome is Outcome.ABORT:
            raise AssertionError("an aborted turn is not history")
        return TurnRecord(
            rid=request.submit.rid,
            number=self.number,
            parent=self.parent,
            keep=self.keep,
            input_ids=self.input_ids,
            output_ids=tuple(request.output),
            outcome=verdict.outcome,
            digest=request.submit.digest,
            cached_tokens=request.cached_tokens or 0,
            matched=verdict.matched,
            dropped=self.dropped,
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the history a turn starts. `base`: restored tokens, the first `keep_at_most` of them the parent's.

    `aborts`: the running turn has to end first (rule S3, `replace`).
    `lent`: the session's own context, if `base` is that as it stands: to be read until the turn has the lease."""

    base: list[int]
    parent: str | None
    keep_at_most: int
    dropped: tuple[str, ...] = ()
    aborts: bool = False
    lent: Context | None = None


def find_place(
    turn: TurnOf, session: Session, running: Request | None, vocab_bytes: Sequence[bytes] = ()
) -> Place | Verdict:
    """Resolve parent, `replace`, `drop_previous_output` and `offset`, or say why that cannot be. `vocab_bytes`: what
    tokens stand for, to meet a whole conversation with the history."""
    history = session.history
    if turn.whole:
        return _meet(turn, session, running, vocab_bytes)
    if session.mode is SessionMode.STREAMING:
        wrong = _refused_by_streaming(turn)
        if wrong:
            return Verdict.abort(Reason.INVALID, f"streaming sessions do not support {wrong}", param=f"session.{wrong}")
        return _behind(session, history.head, running)
    parent = history.head if turn.from_head else turn.parent
    if parent is None:
        dropped = history.all_rids() if turn.replace else ()
        return Place([], None, 0, dropped, aborts=turn.replace)
    if running is not None and running.submit.rid == parent:
        return _replace_running(turn, history.context, running)
    if parent not in history:
        return Verdict.abort(Reason.PARENT_UNKNOWN, f"the session has no turn {parent!r}", param="session.parent")
    if parent == history.head and not (turn.drop_previous_output or turn.offset or turn.replace):
        return _behind(session, parent, running)
    base = history.context(parent)
    whole = len(base)
    if turn.drop_previous_output:
        del base[whole - len(history.turn(parent).output_ids) :]
    dropped = history.descendants(parent) if turn.replace else ()
    return Place(_cut(base, turn.offset), parent, whole, dropped, aborts=_hits_running(running, parent, dropped, turn))


def _meet(turn: TurnOf, session: Session, running: Request | None, vocab_bytes: Sequence[bytes]) -> Place | Verdict:
    """Where a whole conversation goes on."""
    history, parent = session.history, followed(turn, session.history, vocab_bytes)
    if session.mode is SessionMode.STREAMING and parent != history.head:
        text = "these messages do not go on from the session's history, and a streaming session has no branches"
        return Verdict.abort(Reason.INVALID, text, param="messages")
    return _behind(session, parent, running)


def _behind(session: Session, parent: str | None, running: Request | None) -> Place:
    """Right behind a turn. Who has the lease goes on in the session's own context, and whoever comes meanwhile gets a
    copy."""
    history = session.history
    if parent is None or parent != history.head or running is not None:
        base = history.context(parent)
        return Place(base, parent, len(base))
    lent = history.lend()
    return Place(lent.tokens, parent, lent.length, lent=lent)


def assemble(place: Place, submit: Submit, bos_id: int | None) -> tuple[int, TokenIds]:
    """(keep, input ids): how the turn is stored. Its prompt is the kept tokens followed by the input."""
    appended: list[int] = list(submit.input_ids)
    if not place.base:
        appended = list(submit.input_ids if submit.root_ids is None else submit.root_ids)
    else:
        if bos_id is not None and appended and appended[0] == bos_id:
            del appended[0]
        appended = _missing_close(place.base, submit.close_ids) + appended
    keep = min(place.keep_at_most, len(place.base))
    return keep, tuple(place.base[keep:] + appended)


def go_on(place: Place, keep: int, input_ids: TokenIds) -> Context:
    """What a turn that has got the lease is computed in: its prompt so far."""
    if place.lent is None or keep < place.lent.length:
        return Context([*place.base[:keep], *input_ids])
    place.lent.tokens.extend(input_ids)
    return place.lent


def _refused_by_streaming(turn: TurnOf) -> str | None:
    if turn.replace:
        return "replace"
    if turn.drop_previous_output:
        return "drop_previous_output"
    return "offset" if turn.offset else None


def _replace_running(turn: TurnOf, context, running: Request) -> Place | Verdict:  # type: ignore[no-untyped-def]
    """Continue from a turn that still runs: it is aborted, and what it had becomes part of the new turn's input, so
    that history still changes only by commits (rule S2)."""
    if not turn.replace:
        return Verdict.abort(
            Reason.PARENT_UNFINISHED, f"turn {running.submit.rid!r} is still running", param="session.parent"
        )
    if running.turn is None:
        raise AssertionError("the running request of a session is a turn")
    base = context(running.turn.parent)[: running.turn.keep] + list(running.turn.input_ids)
    if not turn.drop_previous_output:
        base += running.output
    return Place(_cut(base, turn.offset), running.turn.parent, running.turn.keep, running.turn.dropped, aborts=True)


def _hits_running(running: Request | None, parent: str, dropped: tuple[str, ...], turn: TurnOf) -> bool:
    """Whether the running turn continues from what `replace` drops."""
    if not turn.replace or running is None or running.turn is None:
        return False
    return running.turn.parent == parent or running.turn.parent in dropped


def _cut(base: list[int], offset: int | None) -> list[int]:
    return base[:offset] if offset else base


def _missing_close(base: Sequence[int], close_ids: TokenIds) -> list[int]:
    if not close_ids or tuple(base[-len(close_ids) :]) == close_ids:
        return []
    return list(close_ids)
