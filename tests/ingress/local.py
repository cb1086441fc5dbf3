"""A whole cluster in one process: real workers (engine, loop thread, toy runner) on a real store behind the ports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from actors.ingress.app import build_app
from actors.ingress.core import Ingress
from actors.ingress.text import TextModel
from actors.ingress.toy_text import toy_text
from actors.messages import (
    Abort,
    CloseSession,
    Event,
    Pause,
    PauseMode,
    Resume,
    RollbackSession,
    SessionClosed,
    SessionMode,
    SessionRolledBack,
    Submit,
)
from actors.ports import Ask, Member, NoWorker, Placement, WorkerGone
from actors.records import PutStatus, ResultClaim, ResultRecord, SessionRecord
from actors.runner.base import ModelRunner
from actors.runner.toy import ToyRunner
from actors.worker.shell import WorkerShell, WorkerStopped
from cluster.store.sqlite import SqliteStore
from configs import AuthConfig, EngineConfig, IngressConfig, RemoraConfig, TenantLimits, WorkerConfig
from tests.ingress.asgi import Client

RunnerMaker = Callable[[], ModelRunner]


class LocalWorker:
    """`WorkerPort` over a shell of the same process. `dead`: as if its process had been killed."""

    def __init__(self, shell: WorkerShell) -> None:
        self.shell = shell
        self.dead = False

    def kill(self) -> None:
        """From outside it is gone at once; its thread is ended so that tests leave nothing behind."""
        self.dead = True
        self.shell.stop()

    async def submit(self, message: Submit) -> None:
        self._check()
        self.shell.submit(message)

    def tell(self, message: Abort) -> None:
        if not self.dead:
            self.shell.abort(message)

    async def ask(self, message: Ask | Pause | Resume | RollbackSession) -> object:
        self._check()
        try:
            return await asyncio.wrap_future(self.shell.ask(message))
        except WorkerStopped as error:
            raise WorkerGone(str(error)) from error

    async def poll(self, ingress_id: str) -> list[Event]:
        self._check()
        events = await self.shell.poll(ingress_id, timeout_s=0.2)
        self._check()
        return events

    async def stats(self) -> dict[str, object]:
        self._check()
        return self.shell.stats()

    def _check(self) -> None:
        if self.dead or not self.shell.alive:
            raise WorkerGone(self.shell.worker_id)


class LocalPool:
    """`PoolPort`: places new sessions on the worker with fewest, and orphans on any living one."""

    def __init__(self, store: SqliteStore, workers: list[LocalWorker]) -> None:
        self.store = store
        self.lease_s = 20.0
        self.result_ttl_s = 3600.0
        self.workers = {worker.shell.worker_id: worker for worker in workers}

    async def members(self) -> list[Member]:
        return [Member(worker_id, "READY", 0) for worker_id in self._living()]

    async def wake(self) -> None:
        """There is no more than there is."""

    def worker(self, worker_id: str) -> LocalWorker:
        return self.workers[worker_id]

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
        owner = min(self._living(), key=lambda worker_id: (len(self.store.owned_by(worker_id)), worker_id))
        record = self.store.create(
            tenant,
            session_id,
            owner=owner,
            mode=mode,
            idle_timeout_s=idle_timeout_s,
            capacity_tokens=capacity_tokens,
            now=time.time(),
        )
        return Placement(record.owner, record)

    async def place(self, tenant: str, session_id: str, *, avoid: str | None = None) -> Placement:
        record = self.store.get(tenant, session_id)
        if record.owner not in self._living():
            owner = self._living()[0]
            record = self.store.acquire(tenant, session_id, owner=owner, expected_epoch=record.epoch)
        return Placement(record.owner, record)

    async def close_session(self, tenant: str, session_id: str, *, abort_running: bool) -> object:
        record = self.store.get(tenant, session_id)
        message = CloseSession(
            tenant=tenant, session_id=session_id, generation=record.generation, abort_running=abort_running
        )
        try:
            closed = await self.workers[record.owner].ask(message)
        except WorkerGone:
            closed = SessionClosed(known=False)
        assert isinstance(closed, SessionClosed)
        if not closed.known:
            known = self.store.close(tenant, session_id, record.generation)
            closed = SessionClosed(known=known, turns=record.turns)
        return closed

    async def fork_session(
        self, tenant: str, session_id: str, *, source_id: str, turn: str | None, max_sessions: int | None = None
    ) -> Placement:
        source = (await self.place(tenant, source_id)).session
        record = self.store.fork(
            tenant,
            session_id,
            source_id=source_id,
            source_generation=source.generation,
            turn=turn,
            owner=source.owner,
            now=time.time(),
        )
        return Placement(record.owner, record)

    async def rollback_session(self, tenant: str, session_id: str, *, turn: str) -> SessionRolledBack:
        while True:
            record = (await self.place(tenant, session_id)).session
            message = RollbackSession(
                tenant=tenant, session_id=session_id, generation=record.generation, epoch=record.epoch, turn=turn
            )
            answer = await self.workers[record.owner].ask(message)
            assert isinstance(answer, SessionRolledBack)
            if not answer.ask_again:
                return answer
            await asyncio.sleep(0.01)

    async def claim_result(self, tenant: str, key: str, *, digest: bytes, owner: str) -> ResultClaim:
        return self.store.claim_result(tenant, key, digest=digest, owner=owner, now=time.time(), lease_s=self.lease_s)

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
        now, lives_s = time.time(), self.result_ttl_s if ttl_s is None else ttl_s
        return self.store.put_result(
            tenant, key, digest=digest, owner=owner, body=body, now=now, ttl_s=lives_s, replace=replace
        )

    async def get_result(self, tenant: str, key: str) -> ResultRecord | None:
        return self.store.get_result(tenant, key, time.time())

    async def release_result(self, tenant: str, key: str, *, owner: str) -> bool:
        return self.store.release_result(tenant, key, owner=owner)

    async def list_sessions(self, tenant: str, *, after: str, limit: int) -> list[SessionRecord]:
        return self.store.list_sessions(tenant, after=after, limit=limit)

    async def get_session(self, tenant: str, session_id: str) -> SessionRecord:
        return self.store.get(tenant, session_id)

    async def pause(self, mode: PauseMode) -> dict[str, object]:
        return await self._everywhere(Pause(mode=mode), paused=True)

    async def resume(self) -> dict[str, object]:
        return await self._everywhere(Resume(), paused=False)

    async def _everywhere(self, message: Pause | Resume, *, paused: bool) -> dict[str, object]:
        rows = [{"id": one, "requests": await self.workers[one].ask(message)} for one in self._living()]
        return {"paused": paused, "workers": rows, "unreachable": []}

    async def rollout(self) -> dict[str, object]:
        """Its workers stay."""
        return {"state": "done"}

    async def status(self) -> dict[str, object]:
        return {"workers": [await self.workers[worker_id].stats() for worker_id in self._living()], "pool": {}}

    def _living(self) -> list[str]:
        living = [worker_id for worker_id, worker in self.workers.items() if not worker.dead]
        if not living:
            raise NoWorker("no worker is ready")
        return living


@dataclass
class Cluster:
    """`app` and a streaming client to it, and the workers behind."""

    app: Any
    client: Client
    pool: LocalPool
    ingress: Ingress

    def shell(self, worker_id: str = "w1") -> WorkerShell:
        return self.pool.workers[worker_id].shell

    def pages(self, worker_id: str = "w1") -> dict[str, int]:
        pages = self.shell(worker_id).stats()["pages"]
        assert isinstance(pages, dict)
        return pages


@asynccontextmanager
async def cluster(
    folder: Path,
    *,
    workers: int = 1,
    step_s: float = 0.0,
    runner: RunnerMaker | None = None,
    engine: EngineConfig | None = None,
    text: TextModel | None = None,
    auth: AuthConfig | None = None,
    tenants: dict[str, TenantLimits] | None = None,
    request_log: str = "",
    **ingress: Any,
) -> AsyncIterator[Cluster]:
    config = replace(
        RemoraConfig(),
        engine=engine or EngineConfig(check_invariants=True),
        ingress=IngressConfig(**{"flush_s": 0.005, **ingress}),
        auth=auth or AuthConfig(),
        tenants=tenants or {},
        workers=WorkerConfig(request_log=request_log),
    )
    store = SqliteStore(str(folder / "sessions.sqlite"))
    make = runner or (lambda: ToyRunner(step_s=step_s))
    local = [LocalWorker(WorkerShell(f"w{n}", config, make(), store)) for n in range(1, workers + 1)]
    for worker in local:
        worker.shell.start()
    pool = LocalPool(store, local)
    core = Ingress(pool, text or toy_text(), config)
    app = build_app(core)
    try:
        yield Cluster(app, Client(app), pool, core)
    finally:
        await core.close()
        for worker in local:
            worker.shell.stop()
        store.shut()
    assert [worker.shell.loop_error for worker in local] == [None] * workers
