"""What a worker answers to control messages: the values of `Reply`."""

from __future__ import annotations

from dataclasses import dataclass

from actors.messages.words import Reason, SessionMode, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """What introspection says of a session (rule S11). `idle_s`: seconds since its last turn ended.

    `resident_tokens`: positions whose KV is in the cache; `hibernated_tokens`: those with a copy outside it.
    """

    tenant: str
    session_id: str
    generation: int
    epoch: int
    mode: SessionMode
    state: str
    turns: int
    tokens: int
    resident_tokens: int
    idle_s: float
    running_rid: str | None = None
    queued: int = 0
    head: str | None = None
    hibernated_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed:
    """Answer to `CloseSession`: `known` False means there was nothing to close. The rest says what was freed."""

    known: bool
    turns: int = 0
    freed_pages: int = 0
    freed_tokens: int = 0
    error: str = ""
    """The memory is free, but the store could not forget the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRolledBack:
    """Answer to `RollbackSession`. `reason` None: it is done, and `info` is the session as it is now.

    `ask_again`: this worker cannot say yet (the history is being read), or any more (place the session anew).
    """

    reason: Reason | None = None
    message: str = ""
    dropped: int = 0
    info: SessionInfo | None = None
    ask_again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLeft:
    """Answer to `LeaveSession`. `left`: done, and for a while no turn of this epoch is taken in any more.

    `keys`: of the pages in the parcel, 16 bytes each; empty when there is none."""

    left: bool
    keys: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortHit:
    """One request that an abort ended, and where it was then."""

    rid: str
    key: str
    stage: Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortReport:
    """Answer to `Abort` (rule A4)."""

    hit: tuple[AbortHit, ...] = ()
    already_ended: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
