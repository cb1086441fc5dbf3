"""What pool and ingresses tell a worker besides requests; most are answered by a `Reply`."""

from __future__ import annotations

from dataclasses import dataclass

from actors.messages.requests import Abort, Submit
from actors.messages.words import PauseMode, Reason, SessionMode


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """Tell the owner of a freshly created session about it. Answered by `Reply[SessionInfo]`."""

    tenant: str
    session_id: str
    generation: int
    epoch: int
    mode: SessionMode
    idle_timeout_s: float | None = None
    capacity_tokens: int | None = None
    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseSession:
    """Close a session. Answered by `Reply[SessionClosed]` once its memory is free (rule S9)."""

    tenant: str
    session_id: str
    generation: int
    abort_running: bool = False
    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkSession:
    """Tell the owner of a freshly forked session about it (rule S12). Answered by `Reply[SessionInfo | None]`, while
    its history is still being read; None when that of a later owner or opening is here already.

    `source_id`: what it was forked from; if that lives here too, they share the pages of the tokens that are the same.
    """

    tenant: str
    session_id: str
    generation: int
    epoch: int
    source_id: str
    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackSession:
    """Make `turn` the head of a session, and drop what continues from it (rule S12).

    Answered by `Reply[SessionRolledBack]` once the store has it.
    """

    tenant: str
    session_id: str
    generation: int
    epoch: int
    turn: str
    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSession:
    """Answered by `Reply[SessionInfo | None]`."""

    tenant: str
    session_id: str
    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushCache:
    """Drop the prefix index and the idle sessions' KV. History stays. Answered by `Reply[int]`: pages made free."""

    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Take nothing more that can run elsewhere: requests without a session, and turns of sessions where none runs or
    waits. What runs goes on (rule T5). Answered by `Reply[bool]`; from then on, an idle session stays idle."""

    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Compute nothing until `Resume`. Requests are taken in and wait; clocks run on, aborts and sessions work as ever.
    Answered by `Reply[int]`, once no step is under way: requests that are held.

    `mode`: what becomes of those that there are. A second pause does to them what its own mode says."""

    mode: PauseMode = PauseMode.IN_PLACE
    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Go on computing. Answered by `Reply[int]`: requests that go on. Nothing happens where nothing is paused."""

    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveSession:
    """Give up a session that is in memory here and in which nothing runs or waits: another worker is about to own it
    (rules P3, T5). Answered by `Reply[SessionLeft]`, after its KV was copied if that is to come along.

    `parcel`: name to keep its KV under until it is fetched, if it is no larger than `max_kv_bytes`; empty = leave it.
    """

    tenant: str
    session_id: str
    generation: int
    epoch: int
    ask: int = 0
    parcel: str = ""
    max_kv_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveSession:
    """This worker owns a session now, and `parcel` has been brought with KV of it: its first full pages, whose keys of
    16 bytes each are in `keys`. Answered by `Reply[bool]`: whether it was of use."""

    tenant: str
    session_id: str
    generation: int
    epoch: int
    parcel: str
    keys: bytes
    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressLost:
    """An ingress stopped polling for longer than its lease: end what it asked for (rule A1)."""

    ingress: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """End every request with `Reason.SHUTDOWN` and accept no more."""

    reason: Reason = Reason.SHUTDOWN


ToWorker = (
    Submit
    | Abort
    | OpenSession
    | CloseSession
    | ForkSession
    | RollbackSession
    | GetSession
    | FlushCache
    | Drain
    | Pause
    | Resume
    | LeaveSession
    | ReceiveSession
    | IngressLost
    | Shutdown
)
