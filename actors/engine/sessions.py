"""Sessions of one worker: who they are, what state they are in, and who holds the lease."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from actors.engine.history import History
from actors.engine.request import Request
from actors.messages import SessionMode
from actors.records import SessionRecord


class SessionState(Enum):
    """LOADING: history is being read from the store, or rolled back in it. IDLE: open, no turn runs. BUSY: a turn
    holds the lease. CLOSING: close was asked; waiting for the running turn, its pages and the store. CLOSED: gone."""

    LOADING = "loading"
    IDLE = "idle"
    BUSY = "busy"
    CLOSING = "closing"
    CLOSED = "closed"


TRANSITIONS: dict[SessionState, frozenset[SessionState]] = {
    SessionState.LOADING: frozenset({SessionState.IDLE, SessionState.CLOSING, SessionState.CLOSED}),
    SessionState.IDLE: frozenset({SessionState.LOADING, SessionState.BUSY, SessionState.CLOSING, SessionState.CLOSED}),
    SessionState.BUSY: frozenset({SessionState.IDLE, SessionState.CLOSING, SessionState.CLOSED}),
    SessionState.CLOSING: frozenset({SessionState.CLOSED}),
    SessionState.CLOSED: frozenset(),
}


class IllegalSessionTransition(Exception):
    """A move that the table does not know. Carries the session's story."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run a turn. Ended by compare-and-clear: only `uid`, the owner, can (rule S5)."""

    epoch: int
    turn: int
    uid: int


@dataclass(slots=True, eq=False)
class Session:
    """One open session. `uid` is the engine's own name for this generation and epoch of it."""

    uid: int
    tenant: str
    session_id: str
    generation: int
    epoch: int
    mode: SessionMode = SessionMode.STREAMING
    idle_timeout_s: float | None = None
    capacity_tokens: int | None = None
    state: SessionState = SessionState.LOADING
    history: History = field(default_factory=History)
    lease: Lease | None = None
    slot_rid: str | None = None
    """The turn whose context the slot holds, as far as its length goes."""
    queue: deque[Request] = field(default_factory=deque)
    """Turns that wait for the lease, or for the session to be loaded, in order of arrival."""
    stopping: int = 0
    """Ended turns of this session whose pages a step in flight still names."""
    idle_since: float = 0.0
    idle_clock_set: bool = False
    forked_from: int | None = None
    """uid of the session whose pages it may share once its history is here."""
    close_asks: list[int] = field(default_factory=list)
    forgetting: bool = False
    """Its memory is free and the store has been asked to forget it."""
    freed_pages: int = 0
    freed_tokens: int = 0
    story: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str]:
        return (self.tenant, self.session_id)

    def move(self, to: SessionState, cause: str, now: float) -> None:
        """Change state, or raise IllegalSessionTransition with everything that happened before."""
        self.story = [*self.story[-19:], f"{now:.3f} {self.state.value} -> {to.value}: {cause}"]
        if to not in TRANSITIONS[self.state]:
            raise IllegalSessionTransition(f"session {self.session_id!r}:\n  " + "\n  ".join(self.story))
        self.state = to


class SessionTable:
    """The only writer of sessions and leases."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], Session] = {}
        self._by_uid: dict[int, Session] = {}
        self._next_uid = 1
        self._leased: set[int] = set()

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def taken(self) -> int:
        """Sessions taken in so far."""
        return self._next_uid - 1

    @property
    def num_leased(self) -> int:
        """Sessions with a turn that runs, or waits for room."""
        return len(self._leased)

    def find(self, tenant: str, session_id: str) -> Session | None:
        return self._by_key.get((tenant, session_id))

    def by_uid(self, uid: int) -> Session | None:
        return self._by_uid.get(uid)

    def all(self) -> list[Session]:
        return list(self._by_uid.values())

    def add(self, tenant: str, session_id: str, generation: int, epoch: int) -> Session:
        """A session in state LOADING. No other of that id may be in the table."""
        session = Session(self._next_uid, tenant, session_id, generation, epoch)
        self._next_uid += 1
        if session.key in self._by_key:
            raise AssertionError(f"session {session_id!r} is in the table already")
        self._by_key[session.key] = session
        self._by_uid[session.uid] = session
        return session

    def loaded(self, session: Session, record: SessionRecord, history: History, now: float) -> None:
        session.mode = record.mode
        session.idle_timeout_s = record.idle_timeout_s
        session.capacity_tokens = record.capacity_tokens
        session.history = history
        session.idle_since = now
        session.move(SessionState.IDLE, "loaded", now)

    def grant(self, session: Session, request: Request, now: float) -> Lease:
        """Give the lease to `request`. The session must be idle."""
        lease = Lease(session.epoch, session.history.last_number + 1, request.uid)
        session.move(SessionState.BUSY, f"turn {lease.turn} by uid {request.uid}", now)
        session.lease = lease
        self._leased.add(session.uid)
        return lease

    def clear(self, session: Session, uid: int, now: float) -> bool:
        """End the lease if `uid` holds it: the idle clock starts (rule S8). False, and nothing changed, otherwise."""
        if session.lease is None or session.lease.uid != uid:
            return False
        session.lease = None
        self._leased.discard(session.uid)
        session.idle_since = now
        if session.state is SessionState.BUSY:
            session.move(SessionState.IDLE, f"turn of uid {uid} ended", now)
        return True

    def retire(self, session: Session, cause: str, now: float) -> None:
        """Take a session out of sight; its id may be used again. The caller has freed what it held."""
        session.move(SessionState.CLOSED, cause, now)
        if self._by_key.get(session.key) is session:
            del self._by_key[session.key]
        self._by_uid.pop(session.uid, None)
        self._leased.discard(session.uid)
