"""What the ingress needs of its peers. The Ray shells implement these over actor handles; tests run real workers
in the same process behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from actors.messages import (
    Abort,
    CloseSession,
    Event,
    FlushCache,
    ForkSession,
    GetSession,
    OpenSession,
    PauseMode,
    SessionMode,
    SessionRolledBack,
    Submit,
)
from actors.records import PutStatus, ResultClaim, ResultRecord, SessionRecord

Ask = Abort | OpenSession | CloseSession | ForkSession | GetSession | FlushCache


class WorkerGone(Exception):
    """The worker's actor is dead or cannot be reached. Whether it saw the message is unknown."""


class NoWorker(Exception):
    """No worker is ready to take this request."""


class PoolAway(NoWorker):
    """The pool cannot be reached. Whether it did what was asked is unknown."""


class WeightsGone(NoWorker):
    """A session is pinned to weights that no worker has any more, nor will have. The message names them."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a session lives now: its owner, and the numbers a turn must carry."""

    worker_id: str
    session: SessionRecord


@dataclass(frozen=True, slots=True)
class Member:
    """A worker as ingresses see it. `load`: requests running and waiting at the last heartbeat; `load_of`: live ones at
    that moment, by the ingress that sent them. `weights`: version of its model's; empty where that is not known."""

    worker_id: str
    state: str
    load: int
    weights: str = ""
    load_of: Mapping[str, int] = field(default_factory=dict)


class WorkerPort(Protocol):
    """One worker, as an ingress talks to it. `ask` numbers are filled in by the worker's shell."""

    async def submit(self, message: Submit) -> None:
        """Returns when the worker has the message. Raises WorkerGone. Refusals come back as events."""

    def tell(self, message: Abort) -> None:
        """Fire and forget; safe from a request that is being cancelled."""

    async def ask(self, message: Ask) -> object:
        """The value of the `Reply`. Raises WorkerGone."""

    async def poll(self, ingress_id: str) -> list[Event]:
        """Wait (about a second at most) for this ingress's events. Also renews its lease. Raises WorkerGone."""

    async def stats(self) -> dict[str, object]:
        """A row of /v1/stats `workers`. Raises WorkerGone."""


class PoolPort(Protocol):
    """The pool: which workers exist, and who owns which session. Not on the token path."""

    async def members(self) -> list[Member]: ...

    async def wake(self) -> None:
        """A request waits for any worker to be ready; asked again while it does. Where workers are scaled to zero, one
        is started. Raises NoWorker when the pool cannot be reached."""

    def worker(self, worker_id: str) -> WorkerPort:
        """A port to a worker named by the pool. Cheap. The port raises WorkerGone when the worker is no more."""

    async def open_session(
        self,
        tenant: str,
        session_id: str,
        *,
        mode: SessionMode,
        idle_timeout_s: float | None,
        capacity_tokens: int | None,
        max_sessions: int | None = None,
    ) -> Placement:
        """`max_sessions`: how many this tenant may have open, in place of the configured number (rule S10).

        Raises SessionExists, NoWorker, StoreError, SessionLimit."""

    async def place(self, tenant: str, session_id: str, *, avoid: str | None = None) -> Placement:
        """The owner of an open session, after finding it a new one if the old is dead or is `avoid` and dead by the
        pool's own knowledge. Raises SessionUnknown, NoWorker, StoreError."""

    async def close_session(self, tenant: str, session_id: str, *, abort_running: bool) -> object:
        """`SessionClosed`. Raises SessionUnknown, StoreError. Works without a living owner."""

    async def fork_session(
        self, tenant: str, session_id: str, *, source_id: str, turn: str | None, max_sessions: int | None = None
    ) -> Placement:
        """A new session that begins with `turn` of another (None: its head), on the worker that has its KV if there is
        room. Raises SessionExists, SessionUnknown, TurnUnknown, NoWorker, StoreError, SessionLimit."""

    async def rollback_session(self, tenant: str, session_id: str, *, turn: str) -> SessionRolledBack:
        """Its `reason` says why not. Raises SessionUnknown, NoWorker, StoreError."""

    async def claim_result(self, tenant: str, key: str, *, digest: bytes, owner: str) -> ResultClaim:
        """See `SessionStore.claim_result`. Raises StoreError."""

    async def put_result(
        self,
        tenant: str,
        key: str,
        *,
        digest: bytes,
        owner: str,
        body: bytes,
        ttl_s: float | None = None,
        replace: bool = False,
    ) -> PutStatus:
        """See `SessionStore.put_result`. `ttl_s` None: `store.idempotency_ttl_s`. Raises StoreError."""

    async def get_result(self, tenant: str, key: str) -> ResultRecord | None:
        """See `SessionStore.get_result`. Raises StoreError."""

    async def release_result(self, tenant: str, key: str, *, owner: str) -> bool:
        """Raises StoreError."""

    async def list_sessions(self, tenant: str, *, after: str, limit: int) -> list[SessionRecord]: ...

    async def get_session(self, tenant: str, session_id: str) -> SessionRecord:
        """Raises SessionUnknown, StoreError."""

    async def rollout(self) -> dict[str, object]:
        """Begin to replace every worker by a new one; answers at once with how it stands. Raises NoWorker when the pool
        cannot be reached."""

    async def pause(self, mode: PauseMode) -> dict[str, object]:
        """Have no worker compute anything until `resume`: {"paused": bool, "workers": [{"id", "requests"}],
        "unreachable": [ids of those that have not answered yet]}. Raises NoWorker when the pool cannot be reached."""

    async def resume(self) -> dict[str, object]:
        """Raises NoWorker when the pool cannot be reached."""

    async def status(self) -> dict[str, object]:
        """{"workers": [rows of worker stats, dead ones without], "pool": {...}} for /v1/stats."""


class SessionLimit(Exception):
    """Too many sessions (rule S10). The message names the limit."""
