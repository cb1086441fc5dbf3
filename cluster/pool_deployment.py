"""The pool as a Serve deployment, so that `serve deploy` and its `user_config` reach it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from actors.ports import PoolPort
from cluster import serve_pool
from cluster.answers import DOWN, Answer
from cluster.located import application_namespace, of_application, with_store_file
from cluster.pool import Pool
from cluster.ray_errors import cause_of
from cluster.ray_names import HEAD_NODE
from cluster.ray_runtime import RayRuntime, WorkerPorts
from cluster.ray_store import end_actors, open_remote_store
from cluster.release import release_of
from cluster.serve_pool import ServePool
from configs import RemoraConfig, from_tree

logger = logging.getLogger("remora.pool")

MAX_ONGOING_REQUESTS = 10_000


@serve.deployment(
    name="pool",
    num_replicas=1,
    max_ongoing_requests=MAX_ONGOING_REQUESTS,
    ray_actor_options={"num_cpus": 0, "resources": HEAD_NODE},
    health_check_period_s=2.0,
    graceful_shutdown_wait_loop_s=0.1,
    graceful_shutdown_timeout_s=30.0,
)
class PoolDeployment:
    """`PoolDeployment.bind(config_tree)`. Workers outlive it: the next one adopts them; without one, their lease ends.
    `shutdown` ends them at once, and so does the end of the application (`serve shutdown`, or a config file without
    it)."""

    async def __init__(self, config_tree: dict[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        application = serve.get_replica_context().app_name
        config = with_store_file(of_application(from_tree(RemoraConfig, config_tree), application), application)
        self._application, self._namespace = application, config.cluster.namespace
        store = await asyncio.to_thread(open_remote_store, config)
        release = await asyncio.to_thread(release_of, config)
        self._pool = Pool(RayRuntime(config, store), store, config, release=release)
        self._pool.start()

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """`{"workers": 3}`: how many workers there should be, in place of the configuration's."""
        unknown = set(user_config) - {"workers"}
        if unknown:
            raise ValueError(f"user_config: unknown settings {sorted(unknown)}; known here: workers")
        count = user_config.get("workers")
        if count is None:
            return
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ValueError(f"user_config.workers: {count!r}; it must be a whole number, 0 or more")
        self._pool.set_workers(count)

    async def answer(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        """See `cluster.serve_pool.answer`."""
        return await serve_pool.answer(self._pool, method, args, kwargs)

    def check_health(self) -> None:
        """Raises when the pool's loop has ended."""
        self._pool.check()

    async def __del__(self) -> None:
        if not hasattr(self, "_pool"):
            return
        if await asyncio.to_thread(is_being_deleted, self._application):
            await self._pool.shutdown()
            await asyncio.to_thread(end_actors, self._namespace)
        else:
            await self._pool.abandon()


def is_being_deleted(application: str) -> bool:
    """Whether Serve ends this application for good, not only this replica. False also when Serve does not say: then
    the workers' lease decides."""
    try:
        found = serve.status().applications.get(application)
    except (RayError, RayServeException) as error:
        logger.warning("it cannot be told whether %s is being deleted: %s", application, cause_of(error))
        return False
    return found is not None and found.status == "DELETING"


def serve_pool_port(namespace: str, handle: Any) -> PoolPort:
    """The ingress's port to the pool, out of the deployment's handle. Runs in the ingress replica. `namespace`: as
    configured."""
    ports = WorkerPorts(application_namespace(namespace, serve.get_replica_context().app_name))
    return ServePool(lambda method, args, kwargs: ask_pool(handle, method, args, kwargs), ports.port, ports.keep)


async def ask_pool(handle: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
    """(DOWN, why) while the pool cannot be reached."""
    # From an empty context: as children of one request, several calls at once could hang or be cancelled with it.
    try:
        answer: Answer = await contextvars.Context().run(handle.answer.remote, method, args, kwargs)
    except (RayError, RayServeException) as error:
        return DOWN, cause_of(error)
    return answer
