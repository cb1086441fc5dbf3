"""The pool's `Runtime` over Ray: worker actors by name."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping
from functools import partial
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.messages import Reason
from actors.ports import WorkerGone, WorkerPort
from actors.records import SessionStore
from actors.wire import decode, encode
from actors.worker.actor import WORKER_CONCURRENCY_GROUPS, ActorWorkerPort, WorkerActor
from cluster import ray_placement
from cluster.ray_errors import cause_of
from cluster.ray_names import NAME_PREFIX, actor_names
from cluster.runtime import PoolAsk, WorkerSilent
from cluster.serve_pool import GoneWorker
from cluster.worker_names import WORKER_PREFIX
from configs import RemoraConfig, to_tree

WORKER_CONCURRENCY = 1000
LOST_PAUSE_S = 0.2


class RayRuntime:
    """Implements `Runtime`. Calls start in an empty context: no request that is cancelled takes them along."""

    def __init__(self, config: RemoraConfig, store: SessionStore) -> None:
        self._config = config
        self._store = store
        self._handles: dict[str, Any] = {}
        self._rooms: set[str] = set()
        """Workers of several ranks, for which room is reserved."""

    async def spawn(self, worker_id: str, release: str) -> None:
        config = self._config
        try:
            room = await self._room_for(worker_id)
            actor = ray.remote(concurrency_groups=WORKER_CONCURRENCY_GROUPS)(WorkerActor).options(
                name=NAME_PREFIX + worker_id,
                namespace=config.cluster.namespace,
                lifetime="detached",
                max_restarts=0,
                max_concurrency=WORKER_CONCURRENCY,
                num_cpus=config.workers.num_cpus,
                num_gpus=config.workers.num_gpus,
                scheduling_strategy=room,
            )
            start = partial(actor.remote, worker_id, to_tree(config), self._store, release)
            self._handles[worker_id] = await asyncio.to_thread(start)
        except (RayError, ValueError) as error:
            await self._forget(worker_id)
            raise WorkerGone(cause_of(error)) from error

    async def heartbeat(self, worker_id: str, pool_id: str) -> Mapping[str, Any]:
        stats: Mapping[str, Any] = await self._call(worker_id, "heartbeat", pool_id)
        return stats

    async def death(self, worker_id: str) -> str:
        while True:
            cause = await self._sentinel(worker_id)
            if cause is not None:
                self._forget(worker_id)  # Who waited for it first would be told a worse cause by others.
                return cause
            await asyncio.sleep(LOST_PAUSE_S)

    async def ask(self, worker_id: str, message: PoolAsk) -> object:
        try:
            return decode(await self._call(worker_id, "ask", encode(message))).value
        except WorkerSilent as silent:
            raise WorkerGone(str(silent)) from silent

    async def carry(self, source: str, target: str, parcel: str) -> bool:
        handle = await self._handle(source)
        fetched = contextvars.Context().run(handle.fetch_parcel.remote, parcel)  # From node to node, as a reference.
        return bool(await self._call(target, "bring_parcel", parcel, fetched))

    async def stop(self, worker_id: str, reason: Reason = Reason.SHUTDOWN) -> None:
        await self._call(worker_id, "stop", reason.value)

    async def kill(self, worker_id: str) -> None:
        try:
            handle = await self._handle(worker_id)
        except WorkerGone:
            await self._forget(worker_id)
            return
        await asyncio.to_thread(ray.kill, handle, no_restart=True)
        await self._forget(worker_id)

    async def living(self) -> list[str]:
        """Also gives back the room of workers that died when no pool was there."""
        namespace = self._config.cluster.namespace
        reserved = await asyncio.to_thread(ray_placement.reserved, namespace)
        names = await asyncio.to_thread(actor_names, namespace)
        found = {name.removeprefix(NAME_PREFIX) for name in names if name.startswith(NAME_PREFIX + WORKER_PREFIX)}
        leftover = reserved - found - self._rooms
        self._rooms |= reserved
        for worker_id in leftover:
            await self._forget(worker_id)
        return sorted(found)

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _room_for(self, worker_id: str) -> PlacementGroupSchedulingStrategy | None:
        """Where a worker of several ranks is to run."""
        config = self._config
        if config.workers.tensor_parallel == 1:
            return None
        self._rooms.add(worker_id)
        return await asyncio.to_thread(ray_placement.reserve, config.cluster.namespace, worker_id, config.workers)

    def _forget(self, worker_id: str) -> asyncio.Future[None]:
        """A worker is dead: what was kept for it is given back, whoever waits for that or not."""
        self._handles.pop(worker_id, None)
        loop = asyncio.get_running_loop()
        if worker_id in self._rooms:
            self._rooms.discard(worker_id)
            return loop.run_in_executor(None, ray_placement.release, self._config.cluster.namespace, worker_id)
        done: asyncio.Future[None] = loop.create_future()
        done.set_result(None)
        return done

    async def _sentinel(self, worker_id: str) -> str | None:
        """Why the worker is dead, or is about to end; None when the call merely broke."""
        try:
            return str(await self._call(worker_id, "sentinel"))
        except WorkerSilent:
            return None
        except WorkerGone as gone:
            return str(gone)

    async def _handle(self, worker_id: str) -> Any:
        handle = self._handles.get(worker_id)
        if handle is None:
            handle = await asyncio.to_thread(find_worker, worker_id, self._config.cluster.namespace)
            self._handles[worker_id] = handle
        return handle

    async def _call(self, worker_id: str, method: str, *args: object) -> Any:
        handle = await self._handle(worker_id)
        try:
            return await contextvars.Context().run(getattr(handle, method).remote, *args)
        except ActorUnavailableError as error:
            raise WorkerSilent(cause_of(error)) from error
        except ActorDiedError as error:
            await self._forget(worker_id)
            raise WorkerGone(cause_of(error)) from error
        except RayError as error:
            raise WorkerGone(cause_of(error)) from error


def find_worker(worker_id: str, namespace: str) -> Any:
    """A worker's handle. Raises WorkerGone when no actor of that name lives."""
    try:
        return ray.get_actor(NAME_PREFIX + worker_id, namespace=namespace)
    except (ValueError, RayError) as error:
        raise WorkerGone(f"{worker_id} is not there") from error


class WorkerPorts:
    """Ports to workers, by id. Each port is new; handles are kept."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._handles: dict[str, Any] = {}

    def port(self, worker_id: str) -> WorkerPort:
        handle = self._handles.get(worker_id)
        if handle is None:
            try:
                handle = self._handles[worker_id] = find_worker(worker_id, self._namespace)
            except WorkerGone as gone:
                return GoneWorker(str(gone))
        return ActorWorkerPort(worker_id, handle)

    def keep(self, worker_ids: set[str]) -> None:
        """Drop the handles of all others."""
        self._handles = {worker_id: handle for worker_id, handle in self._handles.items() if worker_id in worker_ids}
