"""Starting, joining and leaving a Ray cluster, and the application on it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve._private import client

from actors.ports import WorkerGone
from actors.records import SessionStore
from cluster import processes, ray_start
from cluster.app import build_app, with_keys_of
from cluster.http_edge import http_options
from cluster.located import APP_NAME, with_store_file
from cluster.ray_errors import cause_of
from cluster.ray_runtime import RayRuntime
from cluster.ray_start import Cluster, planned
from cluster.ray_store import end_actors, open_remote_store
from cluster.release import release_of
from cluster.worker_names import new_worker_id
from configs import RemoraConfig

__all__ = ["Cluster", "connect", "deploy", "planned", "pool_status", "refuse_a_second", "start_ahead", "stop", "sweep"]

logger = logging.getLogger("remora.cluster")

SHUTDOWN_S = 15.0
LOOK_S = 0.1
_POLLING = "CLIENT_POLLING_INTERVAL_S"


def connect(cluster: Cluster) -> None:
    """See `ray_start.connect`. Raises ConnectionError where somebody serves already."""
    ray_start.connect(cluster)
    refuse_a_second(cluster)


def refuse_a_second(cluster: Cluster) -> None:
    """Raises ConnectionError when somebody serves on a cluster that was joined, which is left as it is."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # Serve sets it when it is imported.
    if cluster.address is not None and APP_NAME in serve.status().applications:
        ray.shutdown()
        raise ConnectionError(f"this Ray cluster has an application {APP_NAME!r} already; end that one first")


def deploy(cluster: Cluster) -> None:
    """Store, pool and ingress. Returns when HTTP answers; workers may still be starting.

    Raises StoreError when the sessions' file cannot be opened, ConfigError for TLS that cannot be had, and RuntimeError
    when the application does not start.
    """
    config = cluster.config
    store = open_remote_store(config)
    if cluster.address is None:
        start_ahead(config, store)
    serve.start(
        proxy_location="EveryNode" if cluster.address else "HeadOnly",
        http_options=http_options(config, os.environ),
        logging_config={"enable_access_log": False, "log_level": "WARNING"},
    )
    _look_often()
    try:
        serve.run(build_app(config), name=APP_NAME, route_prefix="/")
    except RuntimeError as error:
        raise RuntimeError(cause_of(error)) from error


def _look_often() -> None:
    """Serve's client asks once a second whether an application runs, and a start would end up to a second late."""
    if hasattr(client, _POLLING):
        setattr(client, _POLLING, LOOK_S)


def start_ahead(config: RemoraConfig, store: SessionStore) -> None:
    """Begin to start the workers of a cluster that has none, as the pool will want them: it finds and adopts them when
    it is there. Loading a model takes about as long as starting Serve, and neither waits for the other.

    One that cannot be started is left to the pool, which tries again and says why."""
    if config.autoscale.enabled or config.workers.tensor_parallel > 1:
        return  # How many there are to be is the pool's to find out, and room for ranks may have to be waited for.
    wanted = with_store_file(with_keys_of(os.environ, config))
    label, runtime = release_of(wanted).label, RayRuntime(wanted, store)

    async def spawn() -> None:
        workers = (runtime.spawn(new_worker_id(), label) for _ in range(config.workers.count))
        for failure in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(failure, WorkerGone):
                logger.warning("a worker could not be started ahead of the pool: %s", failure)
            elif isinstance(failure, BaseException):
                raise failure

    asyncio.run(spawn())


def pool_status(application: str = APP_NAME) -> dict[str, Any]:
    """`Pool.status`, past HTTP. Raises RuntimeError while the pool cannot be reached."""
    kind, value = _call_pool("status", application)
    if kind != "ok":
        raise RuntimeError(value)
    status: dict[str, Any] = value
    return status


def stop(cluster: Cluster, *, keep_logs: bool = False) -> None:
    """End what `connect` and `deploy` started: workers first, so that their requests end with a reason.

    Other applications of a cluster that was joined are left alone.
    """
    try:
        if ray.is_initialized():
            _end_application(cluster)
    finally:
        ray.shutdown()
        sweep(cluster, keep_logs=keep_logs)


def sweep(cluster: Cluster, *, keep_logs: bool = False, grace_s: float = processes.TERM_S) -> None:
    """End and remove what is left of the Ray that we started, also when it was interrupted on its way up."""
    if cluster.folder is None:
        return
    processes.end_users(cluster.folder, grace_s)
    if not keep_logs:
        shutil.rmtree(cluster.folder, ignore_errors=True)
        return
    for path in list(cluster.folder.rglob("*")):
        if path.is_socket():
            path.unlink(missing_ok=True)


def _end_application(cluster: Cluster) -> None:
    status = serve.status()
    joined = cluster.address is not None
    if APP_NAME in status.applications:
        try:
            _call_pool("shutdown")
        except (RayError, RuntimeError, TimeoutError) as error:
            logger.error("the pool could not end its workers: %s; they are killed", cause_of(error))
        if joined:
            serve.delete(APP_NAME)
    end_actors(cluster.config.cluster.namespace)
    others = set(status.applications) - {APP_NAME}
    if joined and status.proxies and not others:
        serve.shutdown()


def _call_pool(method: str, application: str = APP_NAME) -> tuple[str, Any]:
    handle = serve.get_deployment_handle("pool", application)
    response = handle.answer.remote(method, (), {})
    answer: tuple[str, Any] = response.result(timeout_s=SHUTDOWN_S)
    return answer
