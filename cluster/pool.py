"""The pool: keeps the wanted number of workers alive and knows who owns which session. Not on the token path.

Plain asyncio; everything outside comes in as a port. Its state is a cache of what the store and the workers know: a
pool that starts anew adopts the workers that live.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from actors import process
from actors.messages import PauseMode, SessionClosed, SessionMode, SessionRolledBack
from actors.ports import Member, Placement
from actors.records import PutStatus, ResultClaim, ResultRecord, SessionRecord, SessionStore, StoreError
from cluster.balancer import Balancer
from cluster.census import Census
from cluster.fleet import Fleet
from cluster.membership import Worker
from cluster.pausing import Pausing
from cluster.reconcile import Adopt
from cluster.release import Release
from cluster.results import ResultDesk
from cluster.rolling import Rolling
from cluster.runtime import Runtime
from cluster.scaling import Scaler
from cluster.sessions import NO_WORKER_WAIT_S, SessionDesk
from cluster.store.offload import OffloadedStore
from cluster.store_watch import StoreWatch
from cluster.worker_rows import ANSWER_S, WorkerRows, state_of
from configs import RemoraConfig
from configs.digest import worker_digest

logger = logging.getLogger("remora.pool")

TICK_S = 0.5
WANTED_S = 5.0
"""For how long a request at an ingress counts as waiting for a worker; it asks again before."""
EXPIRE_S = 5.0


class Pool:
    """`start` it inside an event loop, `shutdown` it to end the workers; `abandon` it to leave them running.

    `release`: what workers are to be made of; those of a pool before this one that are made of something else are
    replaced. By default only their settings count."""

    def __init__(
        self,
        runtime: Runtime,
        store: SessionStore,
        config: RemoraConfig,
        *,
        release: Release | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        wait_s: float = NO_WORKER_WAIT_S,
    ) -> None:
        self.pool_id = f"pool-{uuid.uuid4().hex[:8]}"
        self._runtime = runtime
        self._clock = clock
        self._wall_clock = wall_clock
        self._desired = config.workers.count
        self._scaling = (
            Scaler(config.autoscale, config.engine.max_running, config.workers.count)
            if config.autoscale.enabled
            else None
        )
        self._wanted_until = clock()
        self._store = OffloadedStore(store)
        self._watch = StoreWatch(self._store)
        self._results = ResultDesk(self._store, config.store.idempotency_ttl_s, wall_clock)
        release = release or Release(worker_digest(config))
        self._fleet = Fleet(runtime, config.cluster, self.pool_id, clock, self._on_death, self._see_off, release)
        self._desk = SessionDesk(
            self._fleet, runtime, self._store, config.sessions, config.cluster, wait_s=wait_s, wall_clock=wall_clock
        )
        self._rolling = Rolling(config.rollout, config.sessions, self._fleet, self._desk.directory, clock)
        self._rows = WorkerRows(self._fleet.members, runtime, self._desk.directory, self.pool_id, clock)
        self._pausing = Pausing(self._fleet.members, runtime)
        self._balancer = Balancer(config.rebalance, self._fleet.members, self._desk.directory, self._desk.give)
        self._tick_s = min(TICK_S, config.cluster.heartbeat_s)
        self._kick = asyncio.Event()
        self._adopted = asyncio.Event()
        self._expire_at = clock()
        self._to_recount: deque[str] = deque()
        self._census = Census(runtime, clock)
        self._loop: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        """Begin to adopt, start and watch workers."""
        self._loop = asyncio.get_running_loop().create_task(self._run())

    def check(self) -> None:
        """Raises when the loop that `start` began has ended."""
        if self._loop is not None and self._loop.done():
            raise RuntimeError("the pool's loop has ended")

    def set_workers(self, count: int) -> None:
        """How many workers there should be; with autoscaling, from where it goes on."""
        if count != self._desired:
            logger.info("%d workers wanted instead of %d", count, self._desired)
        self._desired = count
        if self._scaling is not None:
            self._scaling.set(count)
            self._desired = self._scaling.desired
        self._kick.set()

    async def shutdown(self) -> None:
        """End all workers, their requests with reason `shutdown`. The pool cannot be used afterwards."""
        await self._stop_loop()
        await self._fleet.shutdown()
        self._store.close()

    async def abandon(self) -> None:
        """Stop acting. Workers run on until their lease ends, for the next pool to adopt."""
        await self._stop_loop()
        self._fleet.abandon()
        self._store.close()

    # -- what ingresses ask (see `PoolPort`) -----------------------------------------------------------------------

    async def members(self) -> list[Member]:
        alive = [one for one in self._fleet.members.all() if one.alive]
        return [
            Member(one.worker_id, state_of(one), one.load, one.weights, one.stats.get("live_of", {})) for one in alive
        ]

    async def wake(self) -> None:
        """A request waits for a worker, whichever: where there is none, one is started."""
        self._wanted_until = self._clock() + WANTED_S
        self._kick.set()

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
        await self._adopted.wait()
        return await self._desk.open(
            tenant,
            session_id,
            mode=mode,
            idle_timeout_s=idle_timeout_s,
            capacity_tokens=capacity_tokens,
            max_sessions=max_sessions,
        )

    async def place(self, tenant: str, session_id: str, *, avoid: str | None = None) -> Placement:
        await self._adopted.wait()
        return await self._desk.place(tenant, session_id, avoid=avoid)

    async def close_session(self, tenant: str, session_id: str, *, abort_running: bool) -> SessionClosed:
        await self._adopted.wait()
        return await self._desk.close(tenant, session_id, abort_running=abort_running)

    async def fork_session(
        self, tenant: str, session_id: str, *, source_id: str, turn: str | None, max_sessions: int | None = None
    ) -> Placement:
        await self._adopted.wait()
        return await self._desk.fork(tenant, session_id, source_id=source_id, turn=turn, max_sessions=max_sessions)

    async def rollback_session(self, tenant: str, session_id: str, *, turn: str) -> SessionRolledBack:
        await self._adopted.wait()
        return await self._desk.rollback(tenant, session_id, turn=turn)

    async def claim_result(self, tenant: str, key: str, *, digest: bytes, owner: str) -> ResultClaim:
        return await self._results.claim(tenant, key, digest=digest, owner=owner)

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
        return await self._results.put(tenant, key, digest=digest, owner=owner, body=body, ttl_s=ttl_s, replace=replace)

    async def get_result(self, tenant: str, key: str) -> ResultRecord | None:
        return await self._results.get(tenant, key)

    async def release_result(self, tenant: str, key: str, *, owner: str) -> bool:
        return await self._results.release(tenant, key, owner=owner)

    async def list_sessions(self, tenant: str, *, after: str, limit: int) -> list[SessionRecord]:
        return await self._desk.list(tenant, after=after, limit=limit)

    async def get_session(self, tenant: str, session_id: str) -> SessionRecord:
        return await self._desk.get(tenant, session_id)

    async def rollout(self) -> dict[str, object]:
        """Begin to replace all workers, one after another, by others of the same settings. Answers at once."""
        self._rolling.begin(self._wall_clock())
        self._kick.set()
        return self._rolling.figures()

    async def pause(self, mode: PauseMode) -> dict[str, object]:
        """Have no worker compute anything until `resume`. Answers when all stand still, or have not said so in time."""
        await self._adopted.wait()
        return await self._pausing.pause(mode)

    async def resume(self) -> dict[str, object]:
        await self._adopted.wait()
        return await self._pausing.resume()

    async def status(self) -> dict[str, object]:
        """Workers as they are now; those that do not answer, as they last were."""
        rows = await self._rows.rows()
        pool = {
            "id": self.pool_id,
            "desired_workers": self._desired,
            "autoscale": None if self._scaling is None else self._scaling.last.reason,
            "parked": self._parked,
            "sessions": len(self._desk.directory),
            "sessions_moved": self._balancer.moved,
            "failed_starts": self._fleet.failed_starts,
            "last_failure": self._fleet.last_failure,
            "rollout": self._rolling.figures(),
            "paused": self._pausing.paused,
            "deaths": self._rows.deaths(),
            "held_sessions": self._desk.held,
            "process": process.figures([asyncio.get_running_loop()]),
        }
        return {"workers": rows, "pool": pool, "store": await self._watch.figures(ANSWER_S)}

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _stop_loop(self) -> None:
        self._balancer.stop()
        self._stopping = True  # `wait_for` may swallow a cancellation that meets its result (before Python 3.12).
        if self._loop is not None:
            self._loop.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop
        self._census.stop()

    async def _see_off(self, worker_id: str) -> None:
        await self._desk.see_off(worker_id)

    def _on_death(self, worker: Worker) -> None:
        orphans = self._desk.directory.remove_worker(worker.worker_id)
        if orphans:
            logger.warning("%d sessions of %s will move on their next turn", len(orphans), worker.worker_id)
        self._kick.set()

    async def _run(self) -> None:
        while not self._stopping:
            await self._tick()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._kick.wait(), self._tick_s)
            self._kick.clear()

    async def _tick(self) -> None:
        """One look at the world. What goes wrong is logged and tried again at the next."""
        try:
            self._fleet.look()
            await self._pausing.look()
            living = await self._living()
            if living is None:
                return
            self._scale(living)
            await self._act(living)
            await self._recount()
            if not self._rolling.under_way:  # Sessions that move have somewhere better to go.
                self._balancer.look(self._clock())
            await self._expire()
        except StoreError as error:
            logger.error("the pool's loop could not use the store: %s", error)
        except Exception:
            logger.exception("the pool's loop failed; it goes on")

    async def _living(self) -> list[str] | None:
        """Ids of all workers that run, now and then; otherwise nothing. None: those of a pool before this one are not
        known yet."""
        living = await self._census.look()
        if living is None:
            return [] if self._adopted.is_set() else None
        if not self._to_recount:
            self._to_recount.extend(worker_id for worker_id in living if worker_id in self._fleet.members)
        return living

    @property
    def _parked(self) -> int:
        """Requests known to wait for a worker: those here, and one for all that wait at ingresses."""
        return self._desk.parked + (self._clock() < self._wanted_until)

    def _scale(self, living: list[str]) -> None:
        if self._scaling is None or self._pausing.paused:
            return
        if not self._adopted.is_set() and len(living) > self._scaling.desired:
            self._scaling.set(len(living))  # Those of a pool before this one: no reason yet to end any.
        wanted = [worker for worker in self._fleet.members.all() if worker.kept_at is None]
        self._desired = self._scaling.look(wanted, self._parked, self._clock(), self._fleet.untold.gone)

    async def _recount(self) -> None:
        """One worker's sessions at a time, so that a large cluster's pool is never busy counting."""
        while self._to_recount:
            worker_id = self._to_recount.popleft()
            if self._fleet.members.alive(worker_id):
                await self._desk.recount(worker_id)
                return

    async def _act(self, living: list[str]) -> None:
        for action in self._rolling.actions(self._desired, living):
            self._fleet.act(action)
            if isinstance(action, Adopt):
                await self._desk.recount(action.worker_id)
        self._adopted.set()  # Before, a living worker's session could be taken for an orphan.

    async def _expire(self) -> None:
        now = self._clock()
        if now < self._expire_at:
            return
        self._expire_at = now + EXPIRE_S
        self._to_recount.extend(self._rolling.kept)  # They go when their last session has.
        expired = await self._desk.expire()
        if expired:
            logger.info("%d sessions without an owner expired", expired)
