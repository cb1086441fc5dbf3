"""The pool's `Runtime` over Ray: worker actors by name, and the actor that owns the session store."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.messages import Reason
from actors.ports import WorkerGone, WorkerPort
from actors.records import SessionStore, StoreError
from actors.wire import decode, encode
from actors.worker.actor import WORKER_CONCURRENCY_GROUPS, ActorWorkerPort, WorkerActor
from cluster import ray_placement
from cluster.answers import DOWN, Answer
from cluster.fleet import WORKER_PREFIX
from cluster.ray_errors import cause_of
from cluster.release import code_digest
from cluster.runtime import PoolAsk, WorkerSilent
from cluster.serve_pool import GoneWorker
from cluster.store.limits import limits_of
from cluster.store.open import open_shared
from cluster.store.remote import RemoteStore
from cluster.store.service import StoreService
from cluster.store.urls import is_redis
from configs import RemoraConfig, to_tree

logger = logging.getLogger("remora.pool")

NAME_PREFIX = "remora:"
STORE_NAME = f"{NAME_PREFIX}store"
HEAD_NODE = {"node:__internal_head__": 0.001}
"""Resources that only the head node has: what must outlive other nodes runs there."""
WORKER_CONCURRENCY = 1000
STORE_CONCURRENCY = 16
LOST_PAUSE_S = 0.2
STORE_ANSWER_S = 10.0


class RayStoreLink:
    """Carries calls to the store actor. Picklable. `timeout_s` bounds one try."""

    def __init__(self, handle: Any, timeout_s: float) -> None:
        self._handle = handle
        self._timeout_s = timeout_s

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        try:
            pending = self._handle.answer.remote(method, args, kwargs)
            answer: Answer = ray.get(pending, timeout=self._timeout_s)
        except (RayError, GetTimeoutError) as error:
            return DOWN, cause_of(error)
        return answer


def open_remote_store(config: RemoraConfig) -> SessionStore:
    """The store of a cluster, for this process and, pickled, for its workers. Raises StoreError.

    One that is not on a server of its own belongs to an actor, started on the head node if need be; blocks until that
    has opened its file.
    """
    if is_redis(config.store.url):
        return open_shared(config.store)
    opened_with = (config.store.url, config.store.vocabulary, limits_of(config.store))
    handle = _store_actor(config, opened_with)
    patience_s = config.cluster.start_timeout_s
    try:
        if not _opened(handle, opened_with, patience_s):
            _shut_store(handle)  # The application was deployed anew, with another store.
            ray.kill(handle, no_restart=True)
            handle = _store_actor(config, opened_with)
            _opened(handle, opened_with, patience_s)
        elif _told(handle.code) not in (None, code_digest()):
            _restart_store(handle, opened_with, patience_s)
    except (RayError, GetTimeoutError) as error:
        raise StoreError(cause_of(error)) from error
    return RemoteStore(RayStoreLink(handle, config.store.commit_timeout_s), config.store.commit_timeout_s)


def _told(method: Any) -> str | None:
    """What the store's process says of itself; None when it cannot be asked just now. Raises RayError,
    GetTimeoutError."""
    try:
        return str(ray.get(method.remote(), timeout=STORE_ANSWER_S))
    except ActorUnavailableError:
        return None


def _opened(handle: Any, opened_with: tuple[object, ...], timeout_s: float, besides: str | None = None) -> bool:
    """Whether the store was opened with this; blocks while it opens, and while its process ends and comes back.
    `besides` is a process that does not count. Raises RayError for one that cannot open it, GetTimeoutError."""
    give_up_at = time.monotonic() + timeout_s
    while time.monotonic() < give_up_at:
        try:
            opened = bool(ray.get(handle.ready.remote(*opened_with), timeout=timeout_s))
            if besides is None or _told(handle.incarnation) not in (None, besides):
                return opened
        except ActorUnavailableError:
            logger.debug("the store's process is not there; it is waited for")
        time.sleep(LOST_PAUSE_S)
    raise GetTimeoutError("the store's process does not come back")


def _restart_store(handle: Any, opened_with: tuple[object, ...], timeout_s: float) -> None:
    """As the same actor in a new process, which reads the sources anew: workers that run keep their way to it, and what
    they have to store waits. Raises RayError, GetTimeoutError."""
    logger.info("the store's process runs on other code; it is restarted")
    before = _incarnation(handle)
    _shut_store(handle)
    ray.kill(handle, no_restart=False)
    _opened(handle, opened_with, timeout_s, besides=before)  # The one before may still answer for a moment.
    if _told(handle.code) not in (None, code_digest()):
        logger.warning("the store's process has other code than this one, also when started anew")


def _incarnation(handle: Any) -> str:
    """Of the store's process as it is now; one of an earlier version of this program has no name."""
    try:
        return _told(handle.incarnation) or ""
    except RayTaskError:
        return ""


def _store_actor(config: RemoraConfig, opened_with: tuple[object, ...]) -> Any:
    return (
        ray.remote(StoreService)
        .options(
            name=STORE_NAME,
            namespace=config.cluster.namespace,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            max_concurrency=STORE_CONCURRENCY,
            num_cpus=0,
            resources=HEAD_NODE,
        )
        .remote(*opened_with)
    )


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


def actor_names(namespace: str) -> list[str]:
    """Named actors of a namespace."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in named if actor["namespace"] == namespace]


def end_actors(namespace: str) -> None:
    """Have the store close its file, then end all our detached actors."""
    for name in sorted(actor_names(namespace), key=lambda name: name == STORE_NAME):
        try:
            handle = ray.get_actor(name, namespace=namespace)
        except ValueError:
            continue  # It has ended meanwhile.
        if name == STORE_NAME:
            _shut_store(handle)
        ray.kill(handle, no_restart=True)
    ray_placement.release(namespace)


def _shut_store(handle: Any) -> None:
    try:
        ray.get(handle.shut.remote(), timeout=5.0)
    except (RayError, GetTimeoutError):
        return  # What was committed is on the disk all the same.
