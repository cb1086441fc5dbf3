"""What the engine cannot do itself, as data: it emits an effect, the worker's shell performs it, and the result comes
back as a message. The engine never waits."""

from __future__ import annotations

from dataclasses import dataclass

from actors.messages import Grammar
from actors.records import SessionRecord, TurnCommit, TurnRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSession:
    """Read a session and its turns from the store. Answered by SessionLoaded."""

    session: int
    tenant: str
    session_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTurn:
    """Make a turn durable. Answered by TurnStored."""

    session: int
    uid: int
    commit: TurnCommit


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSession:
    """Delete a closed session from the store, unless it has changed hands. Answered by SessionForgotten."""

    session: int
    tenant: str
    session_id: str
    generation: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBackTurns:
    """Make a turn the head of a session in the store. Answered by TurnsRolledBack, which carries `ask` back."""

    session: int
    ask: int
    tenant: str
    session_id: str
    generation: int
    epoch: int
    turn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileGrammar:
    """Make a request's grammar ready for the runner. Answered by GrammarReady, unless ReleaseGrammar comes first."""

    uid: int
    grammar: Grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseGrammar:
    """The request is over: stop compiling for it, and forget how far its output had got. Not answered."""

    uid: int


Effect = LoadSession | StoreTurn | ForgetSession | RollBackTurns | CompileGrammar | ReleaseGrammar


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLoaded:
    """`record` None: there is no such session, or, with `error`, it could not be read."""

    session: int
    record: SessionRecord | None
    turns: tuple[TurnRecord, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStored:
    """`stale`: another worker owns the session now. `error`: whether the turn is stored is unknown."""

    session: int
    uid: int
    stale: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionForgotten:
    """The store forgot a session, or failed to (`error`). `found` False: it was not ours to forget: it is gone, or
    another worker owns it now."""

    session: int
    error: str = ""
    found: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsRolledBack:
    """`stale`: another worker owns the session now. `error`: whether it was done is unknown."""

    session: int
    ask: int
    turn: str
    stale: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarReady:
    """`error`: the grammar is wrong, and why, for people. `timed_out`: it could not be compiled in time; it may be
    right."""

    uid: int
    error: str = ""
    timed_out: bool = False


EffectResult = SessionLoaded | TurnStored | SessionForgotten | TurnsRolledBack | GrammarReady
