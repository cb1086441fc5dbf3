"""The session store's actor: started, found, restarted on newer code, and ended with all others."""

from __future__ import annotations

import logging
import time
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError, RayTaskError

from actors.records import SessionStore, StoreError
from cluster import ray_placement
from cluster.answers import DOWN, Answer
from cluster.ray_errors import cause_of
from cluster.ray_names import HEAD_NODE, STORE_NAME, actor_names
from cluster.release import code_digest
from cluster.store.limits import limits_of
from cluster.store.open import open_shared
from cluster.store.remote import RemoteStore
from cluster.store.service import StoreService
from cluster.store.urls import is_redis
from configs import RemoraConfig

logger = logging.getLogger("remora.pool")

STORE_CONCURRENCY = 16
LOST_PAUSE_S = 0.2
STORE_ANSWER_S = 10.0
SHUT_S = 5.0


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
        ray.get(handle.shut.remote(), timeout=SHUT_S)
    except (RayError, GetTimeoutError):
        return  # What was committed is on the disk all the same.
