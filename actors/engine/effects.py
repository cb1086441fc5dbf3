"""What the engine cannot do itself, as data: it emits an effect, the worker's shell performs it, and the result comes
back as a message. The engine never waits."""

from __future__ import annotations

from dataclasses import dataclass

from actors.messages import Grammar
from actors.records import CommitStatus, SessionRecord, TurnCommit, TurnRecord


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveKV:
    """Copy pages out of the KV cache (rule K7): they become pages `first`, `first` + 1, … of this session's image, in
    place of what it had from there on. Nobody writes in them until the answer, KVSaved."""

    session: int
    first: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadKV:
    """Copy pages `first`, `first` + 1, … of a session's image into these. Nobody else uses them until the answer,
    KVLoaded."""

    session: int
    first: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropKV:
    """Forget a session's image, also what is being saved of it. Not answered."""

    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackKV:
    """Make a session's image a parcel of this name, for another worker to fetch. Not answered."""

    session: int
    parcel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackKV:
    """Make a parcel that was brought the image of a session, or, with `session` 0, throw it away. The first is answered
    by KVSaved."""

    session: int
    parcel: str


Effect = (
    LoadSession
    | StoreTurn
    | ForgetSession
    | RollBackTurns
    | CompileGrammar
    | ReleaseGrammar
    | SaveKV
    | LoadKV
    | DropKV
    | PackKV
    | UnpackKV
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLoaded:
    """`record` None: there is no such session, or, with `error`, it could not be read."""

    session: int
    record: SessionRecord | None
    turns: tuple[TurnRecord, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStored:
    """`stale`: another worker owns the session now. `error`: whether the turn is stored is unknown.
    `full`: it was not stored, since a byte cap of the store would be passed; the session goes on."""

    session: int
    uid: int
    stale: bool = False
    error: str = ""
    full: CommitStatus | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSaved:
    """`pages`: how many pages, from the first, the session's image has now. Fewer than were asked for if there was no
    room or no way to write them."""

    session: int
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLoaded:
    """`pages`: how many of the pages asked for, in order, were read whole and unharmed. The others hold nothing of
    use."""

    session: int
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLost:
    """Unasked: of a session's image only the first `pages` are left; the room was needed for others."""

    session: int
    pages: int


EffectResult = (
    SessionLoaded | TurnStored | SessionForgotten | TurnsRolledBack | GrammarReady | KVSaved | KVLoaded | KVLost
)
