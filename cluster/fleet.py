"""The workers' lives: starting, watching, draining and ending them. All decisions are made elsewhere."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from actors.messages import Drain as CloseDoor
from actors.messages import Reason
from actors.ports import WorkerGone
from cluster.actions import Action, Adopt, Drain, Keep, Kill, Spawn
from cluster.glance import Glance
from cluster.membership import Membership, Worker, WorkerState
from cluster.reconcile import backoff_s
from cluster.release import Release
from cluster.runtime import Runtime, WorkerSilent
from cluster.undertakings import Undertakings
from cluster.untold import Untold
from cluster.worker_names import new_worker_id
from configs import ClusterConfig

logger = logging.getLogger("remora.pool")

STOP_S = 5.0
"""How long a worker may take to end its requests before it is killed."""
LAST_EVENTS_S = 0.2
"""How long the ends of its last requests have to leave a stopped worker."""
PROBE_S = 1.0
MAX_DEAD_KEPT = 100
_GOING = (WorkerState.DRAINING, WorkerState.DEAD)


class Fleet:
    """Owns the membership table. `on_death(worker)` is called once for each worker that died; `see_off(worker_id)` when
    one takes nothing in any more: it moves what should not go down with it. `release`: what workers that are started
    now are made of; others are marked as stale."""

    def __init__(
        self,
        runtime: Runtime,
        config: ClusterConfig,
        pool_id: str,
        clock: Callable[[], float],
        on_death: Callable[[Worker], None],
        see_off: Callable[[str], Awaitable[None]],
        release: Release,
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._pool_id = pool_id
        self._clock = clock
        self._on_death = on_death
        self.release = release
        self._see_off = see_off
        self._undertakings = Undertakings(runtime)
        self._tasks: dict[str, set[asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()
        self._retry_at = clock()
        self.members = Membership(config, clock())
        self.untold = Untold()
        self.glance = Glance(self.members, self.probe, config.heartbeat_s, clock)
        self.failed_starts = 0
        """Starts that failed since a worker was last ready."""
        self.last_failure = ""

    @property
    def may_spawn(self) -> bool:
        return self._clock() >= self._retry_at

    async def change(self, timeout_s: float) -> bool:
        """Wait for any worker to become ready or to die. False: the time ran out."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True

    def act(self, action: Action) -> None:
        """Begin to do it, unless the world has changed since it was decided."""
        match action:
            case Spawn():
                self._spawn(new_worker_id())
            case Adopt(worker_id) if worker_id not in self.members:
                logger.info("adopting %s", worker_id)
                self.members.add(worker_id, self._clock(), adopted=True)
                self._watch(worker_id)
            case Drain(worker_id) if self.members.alive(worker_id):
                self._begin_drain(worker_id)
            case Keep(worker_id) if self.members.alive(worker_id):
                self._begin_keeping(worker_id)
            case Kill(worker_id):
                self._count_dead(worker_id, "no longer wanted")
                self._undertakings.end(worker_id)

    def renew(self, at: float) -> None:
        """From now on every worker that runs is one of yesterday. `at`: Unix time, which numbers restarts, so that they
        go on beyond those of pools before this one."""
        restart = max(self.release.restart + 1, int(at))
        self.release = replace(self.release, restart=restart)
        self.failed_starts, self._retry_at = 0, self._clock()
        self._compare()

    def look(self) -> None:
        """Apply the clocks: who was silent for too long is ended for good, so that it cannot come back."""
        for worker in self.members.look(self._clock()):
            self._mourn(worker)
            self._undertakings.end(worker.worker_id)

    async def probe(self, worker_id: str) -> None:
        """Somebody could not reach this worker: find out now whether it is dead."""
        try:
            await asyncio.wait_for(self._ask(worker_id), PROBE_S)
        except WorkerGone as gone:
            self._died(worker_id, str(gone))
        except (WorkerSilent, asyncio.TimeoutError):
            return  # Its silence is counted by its heartbeats.

    async def knows_alive(self, worker_id: str) -> bool:
        """Whether a worker lives. One that is not in the table may be another pool's, and is adopted if it runs."""
        if worker_id not in self.members and worker_id in await self._runtime.living():
            self.act(Adopt(worker_id))
        return self.members.alive(worker_id)

    def has_closed(self, worker_id: str) -> bool:
        """Whether a worker that lives takes nothing in any more that can run elsewhere."""
        worker = self.members.get(worker_id)
        return worker is not None and worker.closed

    def may_have(self, weights: str) -> bool:
        """Whether a worker that lives or will be started has, or may have, this version of the weights."""
        alive = [worker for worker in self.members.all() if worker.state not in _GOING]
        if any(worker.weights == weights or (worker.adopted and not worker.stats) for worker in alive):
            return True
        if self.release.weights:
            return weights == self.release.weights
        return not any(worker.weights for worker in alive if not worker.stale)  # Else they would be these.

    async def kill(self, worker_id: str, cause: str) -> None:
        self._count_dead(worker_id, cause)
        await self._undertakings.ended(worker_id)

    def abandon(self) -> None:
        """Watch nobody any more."""
        for worker_id in list(self._tasks):
            self._stop_watching(worker_id)
        self._undertakings.stop()
        self.glance.stop()

    async def shutdown(self) -> None:
        """End every worker: politely, then for certain."""
        self.glance.stop()
        workers = [worker.worker_id for worker in self.members.all() if worker.alive]
        await asyncio.gather(*(self._end(worker_id, "shutdown") for worker_id in workers))
        for worker_id in await self._runtime.living():
            await self._runtime.kill(worker_id)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _spawn(self, worker_id: str) -> None:
        logger.info("starting %s", worker_id)
        self.members.add(worker_id, self._clock()).release = self.release.label
        self._undertakings.start(worker_id, self.release.label, self._spawned)

    def _spawned(self, worker_id: str, failure: WorkerGone | None) -> None:
        if failure is not None:
            self._died(worker_id, str(failure))
        elif self.members.alive(worker_id):
            self._watch(worker_id)

    def _count_dead(self, worker_id: str, cause: str) -> None:
        if self.members.died(worker_id, cause, self._clock()):
            self._mourn(self.members.get(worker_id), failed=False)

    def _watch(self, worker_id: str) -> None:
        self._start(worker_id, self._await_death(worker_id))
        self._start(worker_id, self._beat(worker_id))

    def _begin_drain(self, worker_id: str) -> None:
        logger.info("draining %s", worker_id)
        self.members.drain(worker_id, self._clock())
        self._start(worker_id, self._drain(worker_id))

    def _begin_keeping(self, worker_id: str) -> None:
        """Its sessions that may run elsewhere go; the others stay."""
        worker = self.members.get(worker_id)
        if worker is not None:
            logger.info("keeping %s for sessions that are pinned to its weights %s", worker_id, worker.weights)
            worker.kept_at = self._clock()
            self._start(worker_id, self._see_off_from(worker_id))

    async def _await_death(self, worker_id: str) -> None:
        self._died(worker_id, await self._runtime.death(worker_id))

    async def _beat(self, worker_id: str) -> None:
        while self.members.alive(worker_id):
            try:
                await self._ask(worker_id)
            except WorkerSilent:
                logger.warning("%s could not be reached", worker_id)
            except WorkerGone as gone:
                self._died(worker_id, str(gone))
            await asyncio.sleep(self._config.heartbeat_s)

    async def _ask(self, worker_id: str) -> None:
        """Raises WorkerGone, WorkerSilent."""
        asked = self.untold.asked(worker_id)
        stats = await self._runtime.heartbeat(worker_id, self._pool_id)
        if self.members.alive(worker_id):
            taken = stats.get("sessions_taken", stats.get("sessions", 0))
            self.untold.heard(worker_id, asked, int(taken), self._clock())
        self._heard(worker_id, stats)

    def _heard(self, worker_id: str, stats: Any) -> None:
        worker = self.members.get(worker_id)
        first = worker is not None and not worker.ever_ready
        if self.members.heard(worker_id, stats, self._clock()):
            logger.info("%s is ready", worker_id)
            self._tell()
        if worker is None or not worker.alive:
            return
        if first or worker.release != stats.get("release", ""):
            worker.release = stats.get("release", "")
            self._compare()
        if first and not worker.adopted:
            self.failed_starts, self._retry_at = 0, self._clock()
        # It drains: a pool before this one began it, or it got SIGTERM.
        going = stats.get("draining", False) or self.release.has_lost(worker.release)
        if going and worker.state is WorkerState.READY:
            self._begin_drain(worker_id)

    def _compare(self) -> None:
        """Every worker with what is started now."""
        alive = [worker for worker in self.members.all() if worker.alive]
        self.release = self.release.after([worker.release for worker in alive])
        for worker in alive:
            known = bool(worker.stats or worker.release)
            stale = known and self.release.replaces(worker.release)
            if stale and not worker.stale:
                logger.info("%s is to be replaced", worker.worker_id)
            worker.stale = stale

    async def _drain(self, worker_id: str) -> None:
        """Let it take nothing new, see its sessions off, wait for what runs, and end it."""
        give_up_at = self._clock() + self._config.drain_grace_s
        worker = self.members.get(worker_id)
        while worker is not None and worker.alive and not worker.closed and self._clock() < give_up_at:
            await self._close_door(worker)
        leaving = asyncio.ensure_future(self._see_off_from(worker_id))
        try:
            while worker is not None and worker.alive and self._clock() < give_up_at:
                since = worker.heard_at
                await asyncio.sleep(self._config.heartbeat_s)
                idle = worker.heard_at > since and not worker.load and not worker.stats.get("live", 0)
                if idle and leaving.done():
                    break
        finally:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
        await self._end(worker_id, "drained", Reason.WORKER_DRAINING)

    async def _see_off_from(self, worker_id: str) -> None:
        try:
            await self._see_off(worker_id)
        except Exception:  # What did not move goes on from the store.
            logger.exception("seeing the sessions of %s off failed", worker_id)

    async def _close_door(self, worker: Worker) -> None:
        try:
            await asyncio.wait_for(self._runtime.ask(worker.worker_id, CloseDoor()), self._config.dead_s)
            worker.closed = True
        except (WorkerGone, asyncio.TimeoutError) as error:
            logger.warning("%s cannot be told to drain: %s", worker.worker_id, error)
            await asyncio.sleep(self._config.heartbeat_s)

    async def _end(self, worker_id: str, cause: str, reason: Reason = Reason.SHUTDOWN) -> None:
        with suppress(WorkerGone, WorkerSilent, asyncio.TimeoutError):
            await asyncio.wait_for(self._runtime.stop(worker_id, reason), STOP_S)
            await asyncio.sleep(LAST_EVENTS_S)
        await self.kill(worker_id, cause)

    def _died(self, worker_id: str, cause: str) -> None:
        if self.members.died(worker_id, cause, self._clock()):
            self._mourn(self.members.get(worker_id))

    def _mourn(self, worker: Worker | None, *, failed: bool = True) -> None:
        """A worker is dead since now. `failed`: not by our own wish."""
        if worker is None:
            return
        logger.log(logging.ERROR if failed else logging.INFO, "%s is dead: %s", worker.worker_id, worker.cause)
        if failed and not worker.ever_ready:
            self.failed_starts += 1
            self.last_failure = worker.cause
            self._retry_at = self._clock() + backoff_s(self.failed_starts)
        self._on_death(worker)
        self._stop_watching(worker.worker_id)
        dead = [one for one in self.members.all() if one.state is WorkerState.DEAD]
        for one in dead[:-MAX_DEAD_KEPT]:
            self.members.forget(one.worker_id)
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _start(self, worker_id: str, work: Coroutine[Any, Any, None]) -> None:
        """A task of the worker's, in an empty context: cancelling whatever request is being served cannot reach it."""
        task = contextvars.Context().run(asyncio.get_running_loop().create_task, work)
        tasks = self._tasks.setdefault(worker_id, set())
        tasks.add(task)
        task.add_done_callback(lambda done: self._ended(worker_id, done))

    def _ended(self, worker_id: str, task: asyncio.Task[None]) -> None:
        self._tasks.get(worker_id, set()).discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("watching %s failed", worker_id, exc_info=task.exception())
            self._died(worker_id, f"watching it failed: {task.exception()!r}")

    def _stop_watching(self, worker_id: str) -> None:
        current = asyncio.current_task()
        for task in self._tasks.pop(worker_id, set()):
            if task is not current:
                task.cancel()
