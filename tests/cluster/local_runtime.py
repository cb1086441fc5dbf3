"""Workers in this process, behind the pool's Runtime: real shells, real engines, toy runners, no Ray.

Tests can kill them without a word, freeze them, and make the next start fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from actors.messages import Reason, Shutdown
from actors.ports import WorkerGone
from actors.records import SessionStore
from actors.runner.toy import ToyRunner
from actors.worker.shell import WorkerShell
from cluster.runtime import PoolAsk, WorkerSilent
from configs import RemoraConfig


class LocalWorker:
    """`thawed` is set unless the worker is frozen; `ended` once it is dead."""

    def __init__(self, shell: WorkerShell, release: str) -> None:
        self.shell = shell
        self.release = release
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.ended = asyncio.Event()
        self.cause = ""
        self.stopped_politely = False
        self.heartbeats = 0


class LocalRuntime:
    """Implements `cluster.runtime.Runtime`. Outlives a pool, as Ray does."""

    def __init__(self, config: RemoraConfig, store: SessionStore) -> None:
        self.workers: dict[str, LocalWorker] = {}
        self.spawned: list[str] = []
        self.failing_starts: list[str] = []
        """Causes with which the next starts fail."""
        self.loses_parcels = False
        self.step_s = 0.0
        """How long a step takes."""
        self.make_runner: Callable[..., ToyRunner] = ToyRunner
        """One that steps can get stuck in has a `release`, so that its threads end with the test."""
        self.stuck_starts = False
        """Workers that are spawned from now on never get ready."""
        self.control = asyncio.Event()
        """Cleared: what starts, ends or lists workers waits, as it does while Ray's control service is away."""
        self.control.set()
        self.starts = asyncio.Event()
        """Cleared: workers begin to start, and do not get ready."""
        self.starts.set()
        self._config = config
        self._store = store

    async def spawn(self, worker_id: str, release: str) -> None:
        await self.control.wait()
        self.spawned.append(worker_id)
        if self.failing_starts:
            raise WorkerGone(self.failing_starts.pop(0))
        weights = self._config.workers.toy_weights
        runner = self.make_runner(page_size=16, kv_tokens=4096, max_context=2048, step_s=self.step_s, weights=weights)
        shell = WorkerShell(worker_id, self._config, runner, self._store)
        shell.start()
        self.workers[worker_id] = LocalWorker(shell, release)
        if self.stuck_starts:
            self.freeze(worker_id)

    async def heartbeat(self, worker_id: str, pool_id: str) -> Mapping[str, Any]:
        await self.starts.wait()
        worker = self._worker(worker_id)
        await self._answer(worker)
        worker.heartbeats += 1
        return {**worker.shell.stats(), "release": worker.release}

    async def death(self, worker_id: str) -> str:
        worker = self.workers[worker_id]
        await worker.ended.wait()
        return worker.cause

    async def ask(self, worker_id: str, message: PoolAsk) -> object:
        worker = self._worker(worker_id)
        await self._answer(worker)
        answer = asyncio.ensure_future(asyncio.wrap_future(worker.shell.ask(message)))
        death = asyncio.ensure_future(worker.ended.wait())
        await asyncio.wait({answer, death}, return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if not answer.done() or answer.exception() is not None:
            answer.cancel()
            raise WorkerGone(worker.cause)
        return answer.result()

    async def carry(self, source: str, target: str, parcel: str) -> bool:
        fetched = await asyncio.to_thread(self._worker(source).shell.parcels.take, parcel, 5.0)
        if fetched is None or self.loses_parcels:
            return False
        self._worker(target).shell.parcels.put(parcel, fetched)
        return True

    async def stop(self, worker_id: str, reason: Reason = Reason.SHUTDOWN) -> None:
        worker = self._worker(worker_id)
        await self._answer(worker)
        worker.stopped_politely = True
        await asyncio.to_thread(worker.shell.stop, Shutdown(reason=reason))

    async def kill(self, worker_id: str) -> None:
        await self.control.wait()
        if worker_id in self.workers:
            await self.die(worker_id, "killed")

    async def living(self) -> list[str]:
        await self.control.wait()
        return [worker_id for worker_id, worker in self.workers.items() if not worker.ended.is_set()]

    # -- what tests do to workers ----------------------------------------------------------------------------------

    async def die(self, worker_id: str, cause: str = "kill -9") -> None:
        worker = self.workers[worker_id]
        if not worker.ended.is_set():
            worker.cause = cause
            worker.ended.set()
            worker.thawed.set()
        stopping = asyncio.ensure_future(asyncio.to_thread(worker.shell.stop))
        # What is killed goes on with nothing: it learns of its end before a step that it is stuck in returns.
        while not (worker.shell._stopped or stopping.done()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        getattr(worker.shell.runner, "release", lambda: None)()
        await stopping

    def freeze(self, worker_id: str) -> None:
        self.workers[worker_id].thawed.clear()

    def thaw(self, worker_id: str) -> None:
        self.workers[worker_id].thawed.set()

    async def close(self) -> None:
        for worker_id in self.workers:
            await self.die(worker_id)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _worker(self, worker_id: str) -> LocalWorker:
        worker = self.workers.get(worker_id)
        if worker is None:
            raise WorkerSilent(worker_id)
        if worker.ended.is_set():
            raise WorkerGone(worker.cause)
        return worker

    async def _answer(self, worker: LocalWorker) -> None:
        await worker.thawed.wait()
        if worker.ended.is_set():
            raise WorkerGone(worker.cause)
