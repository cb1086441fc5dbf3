"""The pool as ingress replicas see it, over whatever carries calls to its deployment."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from actors.messages import Abort, Event, PauseMode, SessionMode, SessionRolledBack, Submit
from actors.ports import Ask, Member, NoWorker, Placement, PoolAway, WorkerGone, WorkerPort
from actors.records import PutStatus, ResultClaim, ResultRecord, SessionRecord, StoreError
from cluster.answers import DOWN, EXPECTED, OK, Answer, refusal, unwrap
from cluster.pool import Pool

logger = logging.getLogger("remora.ingress")

PoolCall = Callable[[str, tuple[Any, ...], dict[str, Any]], Awaitable[Answer]]
METHODS = frozenset(
    {
        "members",
        "wake",
        "open_session",
        "place",
        "fork_session",
        "rollback_session",
        "close_session",
        "claim_result",
        "put_result",
        "get_result",
        "release_result",
        "list_sessions",
        "get_session",
        "rollout",
        "pause",
        "resume",
        "status",
        "shutdown",
    }
)


async def answer(pool: Pool, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
    """Call a method of the pool and say what came of it."""
    if method not in METHODS:
        raise ValueError(f"the pool has no {method!r}")
    try:
        return OK, await getattr(pool, method)(*args, **kwargs)
    except EXPECTED as error:
        return refusal(error)


class GoneWorker:
    """Implements `WorkerPort` for a worker that is no more."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def submit(self, message: Submit) -> None:
        raise WorkerGone(self._why)

    def tell(self, message: Abort) -> None:
        """What ran there has ended with it."""

    async def ask(self, message: Ask) -> object:
        raise WorkerGone(self._why)

    async def poll(self, ingress_id: str) -> list[Event]:
        raise WorkerGone(self._why)

    async def stats(self) -> dict[str, object]:
        raise WorkerGone(self._why)


class ServePool:
    """Implements `PoolPort`. `call` gives (DOWN, why) when the pool cannot be reached, as while it restarts."""

    def __init__(
        self, call: PoolCall, port: Callable[[str], WorkerPort], keep: Callable[[set[str]], None] = lambda ids: None
    ) -> None:
        self._call = call
        self._port = port
        self._keep = keep
        self._members: list[Member] | None = None

    async def members(self) -> list[Member]:
        """While the pool is away, those it named last: whoever is gone by then says so when it is asked."""
        answer = await self._call("members", (), {})
        if answer[0] == DOWN and self._members is not None:
            logger.warning("the pool cannot be reached (%s); going on with the workers it named last", answer[1])
            return self._members
        members: list[Member] = unwrap(answer, NoWorker)
        self._members = members
        self._keep({member.worker_id for member in members})
        return members

    async def wake(self) -> None:
        unwrap(await self._call("wake", (), {}), NoWorker)

    def worker(self, worker_id: str) -> WorkerPort:
        return self._port(worker_id)

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
        options = {
            "mode": mode,
            "idle_timeout_s": idle_timeout_s,
            "capacity_tokens": capacity_tokens,
            "max_sessions": max_sessions,
        }
        placed: Placement = unwrap(await self._call("open_session", (tenant, session_id), options), PoolAway)
        return placed

    async def place(self, tenant: str, session_id: str, *, avoid: str | None = None) -> Placement:
        placed: Placement = unwrap(await self._call("place", (tenant, session_id), {"avoid": avoid}), NoWorker)
        return placed

    async def close_session(self, tenant: str, session_id: str, *, abort_running: bool) -> object:
        options = {"abort_running": abort_running}
        return unwrap(await self._call("close_session", (tenant, session_id), options), StoreError)

    async def fork_session(
        self, tenant: str, session_id: str, *, source_id: str, turn: str | None, max_sessions: int | None = None
    ) -> Placement:
        options = {"source_id": source_id, "turn": turn, "max_sessions": max_sessions}
        placed: Placement = unwrap(await self._call("fork_session", (tenant, session_id), options), PoolAway)
        return placed

    async def rollback_session(self, tenant: str, session_id: str, *, turn: str) -> SessionRolledBack:
        answer = await self._call("rollback_session", (tenant, session_id), {"turn": turn})
        done: SessionRolledBack = unwrap(answer, NoWorker)
        return done

    async def claim_result(self, tenant: str, key: str, *, digest: bytes, owner: str) -> ResultClaim:
        options = {"digest": digest, "owner": owner}
        claim: ResultClaim = unwrap(await self._call("claim_result", (tenant, key), options), StoreError)
        return claim

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
        options = {"digest": digest, "owner": owner, "body": body, "ttl_s": ttl_s, "replace": replace}
        status: PutStatus = unwrap(await self._call("put_result", (tenant, key), options), StoreError)
        return status

    async def get_result(self, tenant: str, key: str) -> ResultRecord | None:
        record: ResultRecord | None = unwrap(await self._call("get_result", (tenant, key), {}), StoreError)
        return record

    async def release_result(self, tenant: str, key: str, *, owner: str) -> bool:
        return bool(unwrap(await self._call("release_result", (tenant, key), {"owner": owner}), StoreError))

    async def list_sessions(self, tenant: str, *, after: str, limit: int) -> list[SessionRecord]:
        options = {"after": after, "limit": limit}
        records: list[SessionRecord] = unwrap(await self._call("list_sessions", (tenant,), options), StoreError)
        return records

    async def get_session(self, tenant: str, session_id: str) -> SessionRecord:
        record: SessionRecord = unwrap(await self._call("get_session", (tenant, session_id), {}), StoreError)
        return record

    async def status(self) -> dict[str, object]:
        status: dict[str, object] = unwrap(await self._call("status", (), {}), StoreError)
        return status

    async def pause(self, mode: PauseMode) -> dict[str, object]:
        paused: dict[str, object] = unwrap(await self._call("pause", (mode,), {}), NoWorker)
        return paused

    async def resume(self) -> dict[str, object]:
        resumed: dict[str, object] = unwrap(await self._call("resume", (), {}), NoWorker)
        return resumed

    async def rollout(self) -> dict[str, object]:
        begun: dict[str, object] = unwrap(await self._call("rollout", (), {}), NoWorker)
        return begun
