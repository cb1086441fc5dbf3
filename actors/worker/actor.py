"""The worker as a Ray actor: a shell, and nothing that computes.

Concurrency groups keep aborts and control off the data path; each group has its own thread and event loop, and what
they share is thread-safe (mailbox, outbox). A request never waits in Ray's own queue, where an abort could not reach
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors import process
from actors.messages import Abort, Drain, Event, Reason, Reply, Shutdown, Submit
from actors.ports import WorkerGone
from actors.records import SessionStore
from actors.wire import decode, decode_frame, encode
from actors.worker.build import build_runner
from actors.worker.kv_parcels import Parcel
from actors.worker.ranks import RankActor, Ranks
from actors.worker.shell import Ask, WorkerShell
from configs import RemoraConfig, from_tree, to_tree

logger = logging.getLogger("remora.worker")

WORKER_CONCURRENCY_GROUPS = {"channel": 256, "control": 64}
_LEASE_LOOK_S = 1.0
_POOL_LATE_S = 10.0
"""How long after the end of the grace a worker that got SIGTERM waits for the pool to end it."""
_LAST_EVENTS_S = 0.2
_ENDS_PROCESS = "raise_sys_exit_with_custom_error_message"
PACKING_S = 10.0
"""How long a parcel may take to be packed; the pool has less patience."""


class WorkerActor:
    """Created detached by the pool, under a name of its own, with `max_restarts=0`: a new process is a new worker.
    `release` says what it is made of, for the pool that asks later."""

    def __init__(self, worker_id: str, config: dict[str, Any], store: SessionStore, release: str) -> None:
        self._config = from_tree(RemoraConfig, config)
        self._release = release
        self._asked_to_end = threading.Event()
        self._end: Future[object] = Future()
        """Why this process is about to end by itself."""
        self._ranks = Ranks(start_ranks(self._config), self._config.cluster, self._end_now, self._asked_to_end.set)
        runner, bos_id = build_runner(self._config, self._end_now)
        self._ranks.meet(runner, ray.util.get_node_ip_address())
        self._shell = WorkerShell(worker_id, self._config, runner, store, bos_id=bos_id)
        process.settle_garbage()
        self._shell.start()
        self._heard_from_pool_at = time.monotonic()
        self._loops: set[asyncio.AbstractEventLoop] = set()
        """One of each concurrency group that has been heard."""
        on_sigterm(self._asked_to_end.set)
        threading.Thread(target=self._watch, name="remora-lease", daemon=True).start()

    async def submit(self, message: bytes) -> None:
        self._shell.submit(decode(message))

    @ray.method(concurrency_group="channel")
    async def poll(self, ingress_id: str, acknowledged: int) -> bytes:
        self._loops.add(asyncio.get_running_loop())
        return await self._shell.poll_frame(ingress_id, acknowledged)

    @ray.method(concurrency_group="control")
    async def abort(self, message: bytes) -> None:
        self._shell.abort(decode(message))

    @ray.method(concurrency_group="control")
    async def ask(self, message: bytes) -> bytes:
        value = await asyncio.wrap_future(self._shell.ask(decode(message)))
        return encode(Reply(ask=0, value=value))

    @ray.method(concurrency_group="control")
    async def stats(self) -> dict[str, object]:
        return self._row()

    @ray.method(concurrency_group="control")
    async def heartbeat(self, pool_id: str) -> dict[str, object]:
        """Stats and what it is made of, and the pool's sign of life to this worker."""
        self._heard_from_pool_at = time.monotonic()
        self._loops.add(asyncio.get_running_loop())
        return {**self._row(), "release": self._release}

    @ray.method(concurrency_group="control")
    async def sentinel(self) -> str:
        """The call fails the moment this actor dies, which is how the pool learns of it; or, just before this process
        ends by itself, says why it does."""
        return str(await asyncio.shield(asyncio.wrap_future(self._end)))

    @ray.method(concurrency_group="control")
    async def stop(self, reason: str = Reason.SHUTDOWN.value) -> None:
        """End every request with this reason, hand out their events, stop."""
        shutdown = Shutdown(reason=Reason(reason))
        self._ranks.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._shell.stop, shutdown)

    @ray.method(concurrency_group="control")
    async def fetch_parcel(self, name: str) -> tuple[str, list[Any]] | None:
        """KV that is to move to another worker: its format, and pieces of pages as uint8 arrays, which the object store
        carries without copying. None if there is none of that name."""
        loop = asyncio.get_running_loop()
        parcel = await loop.run_in_executor(None, self._shell.parcels.take, name, PACKING_S)
        if parcel is None:
            return None
        return parcel.kv_format, [np.frombuffer(piece, dtype=np.uint8) for piece in parcel.pieces]

    @ray.method(concurrency_group="control")
    async def bring_parcel(self, name: str, fetched: tuple[str, list[Any]] | None) -> bool:
        """What another worker's `fetch_parcel` gave. False: nothing."""
        if fetched is None:
            return False
        kv_format, arrays = fetched
        self._shell.parcels.put(name, Parcel(kv_format, tuple(array.tobytes() for array in arrays)))
        return True

    def _row(self) -> dict[str, object]:
        return {
            **self._shell.stats(),
            "node_id": ray.get_runtime_context().get_node_id(),
            "tensor_parallel": self._config.workers.tensor_parallel,
            "ranks": self._ranks.rows,
            "process": process.figures(self._loops),
        }

    def _watch(self) -> None:
        """A detached actor nobody owns must end by itself; so must one whose loop has died of a bug."""
        lease_s = self._config.cluster.pool_lease_s
        while not self._asked_to_end.wait(_LEASE_LOOK_S):
            if self._shell.loop_error is not None:
                logger.critical("the loop died: %r; this worker ends", self._shell.loop_error)
                os._exit(1)
            if time.monotonic() - self._heard_from_pool_at > lease_s:
                logger.error("no pool has spoken for %.0f s; this worker ends", lease_s)
                os._exit(1)
        self._leave()

    def _leave(self) -> None:
        """Take nothing new any more. The pool sees it by the next heartbeat, sees the sessions off, and ends this actor
        when nothing runs or the grace is over; without a pool it ends by itself then."""
        logger.warning("asked to end by SIGTERM: draining")
        self._shell.ask(Drain())
        time.sleep(self._config.cluster.drain_grace_s + _POOL_LATE_S)
        self._ranks.stop()
        self._shell.stop()
        time.sleep(_LAST_EVENTS_S)
        os._exit(0)

    def _end_now(self, why: str) -> None:
        """A rank is lost. Does not return: nobody is to be told that what ran here has failed, since it can run
        elsewhere."""
        with contextlib.suppress(InvalidStateError):  # Another thread has found it, too.
            self._end.set_result(why)
            logger.critical("%s; this worker ends", why)
        time.sleep(_LAST_EVENTS_S)
        os._exit(1)


def start_ranks(config: RemoraConfig) -> list[Any]:
    """Actors for all ranks but the first, each in its part of the room that was reserved for this worker. They are this
    process's: Ray ends them when it ends."""
    workers = config.workers
    room = ray.util.get_current_placement_group()
    return [
        ray.remote(RankActor)
        .options(
            num_cpus=workers.num_cpus,
            num_gpus=workers.num_gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(room, placement_group_bundle_index=rank),
        )
        .remote(to_tree(config), rank, on_sigterm)
        for rank in range(1, workers.tensor_parallel)
    ]


def on_sigterm(call: Callable[[], None]) -> None:
    """Have SIGTERM call this, in the process's main thread. Ray's own handler ends the process at once, with all that
    runs in it. An actor's constructor is not in the main thread, so it cannot set another; but it can replace what that
    one calls."""
    from ray._private import worker

    if not hasattr(worker, _ENDS_PROCESS):
        logger.warning("this version of Ray ends a worker at SIGTERM without draining it")
        return
    setattr(worker, _ENDS_PROCESS, lambda message, exit_code=1: call())


class ActorWorkerPort:
    """`WorkerPort` over an actor handle."""

    def __init__(self, worker_id: str, handle: Any) -> None:
        self.worker_id = worker_id
        self._handle = handle
        self._acknowledged = 0

    async def submit(self, message: Submit) -> None:
        await self._call(self._handle.submit, encode(message))

    def tell(self, message: Abort) -> None:
        # From an empty context: as a child of a request that is being cancelled, the call could be cancelled with it.
        contextvars.Context().run(self._handle.abort.remote, encode(message))

    async def ask(self, message: Ask) -> object:
        return decode(await self._call(self._handle.ask, encode(message))).value

    async def poll(self, ingress_id: str) -> list[Event]:
        frame = await self._call(self._handle.poll, ingress_id, self._acknowledged)
        if not frame:
            return []
        self._acknowledged, events = decode_frame(frame)
        return events

    async def stats(self) -> dict[str, object]:
        return dict(await self._call(self._handle.stats))

    async def _call(self, method: Any, *args: object) -> Any:
        try:
            return await contextvars.Context().run(method.remote, *args)
        except RayError as error:
            raise WorkerGone(f"{self.worker_id}: {type(error).__name__}") from error
