"""Starting, joining and leaving a Ray cluster, and the application on it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError

from actors.records import StoreError
from cluster.app import build_app
from cluster.environment import PACKAGES, code_root, is_checkout
from cluster.pool_deployment import ask_pool
from cluster.ray_errors import cause_of
from cluster.ray_runtime import end_actors, open_remote_store
from configs import RemoraConfig

APP_NAME = "remora"
OBJECT_STORE_BYTES = 128 * 2**20
"""Nothing large passes through Ray's object store."""
SHUTDOWN_S = 15.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """`folder`: where the Ray we started keeps its sockets and logs; None when we joined another's cluster."""

    config: RemoraConfig
    folder: Path | None


def connect(config: RemoraConfig) -> Cluster:
    """Join the cluster that RAY_ADDRESS names, else start one on this machine that ends with this process."""
    address = os.environ.get("RAY_ADDRESS")
    if address:
        modules = [str(code_root() / name) for name in PACKAGES] if is_checkout() else []
        runtime_env = {"py_modules": modules} if modules else {}
        ray.init(address=address, runtime_env=runtime_env, log_to_driver=False, logging_level=logging.ERROR)
        return Cluster(config, None)
    folder = Path(tempfile.mkdtemp(prefix="remora-"))
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(folder),
    )
    return Cluster(config, folder)


def deploy(cluster: Cluster) -> None:
    """Store, pool and ingress. Returns when HTTP answers; workers may still be starting.

    Raises StoreError when the sessions' file cannot be opened, and RuntimeError when the application does not start.
    """
    config = cluster.config
    open_remote_store(config)
    serve.start(
        proxy_location="HeadOnly" if cluster.folder else "EveryNode",
        http_options={"host": config.ingress.host, "port": config.ingress.port},
        logging_config={"enable_access_log": False, "log_level": "WARNING"},
    )
    serve.run(build_app(config), name=APP_NAME, route_prefix="/")


def pool_status() -> dict[str, Any]:
    """`Pool.status`, past HTTP. Raises RuntimeError while the pool cannot be reached."""
    kind, value = _call_pool("status")
    if kind != "ok":
        raise RuntimeError(value)
    status: dict[str, Any] = value
    return status


def stop(cluster: Cluster, *, keep_logs: bool = False, progress: Callable[[str], None] = lambda text: None) -> None:
    """End what `connect` and `deploy` started: workers first, so that their requests end with a reason."""
    try:
        _end_application(cluster.config.cluster.namespace, progress)
    finally:
        ray.shutdown()
        if cluster.folder is not None and not keep_logs:
            shutil.rmtree(cluster.folder, ignore_errors=True)


def _end_application(namespace: str, progress: Callable[[str], None]) -> None:
    try:
        progress("ending the workers")
        _call_pool("shutdown")
        progress("ending Serve")
        if APP_NAME in serve.status().applications:
            serve.delete(APP_NAME)
    except (RayError, RuntimeError, StoreError, TimeoutError) as error:
        progress(f"not in order: {cause_of(error)}")
    end_actors(namespace)
    serve.shutdown()


def _call_pool(method: str) -> tuple[str, Any]:
    handle = serve.get_deployment_handle("pool", APP_NAME)
    response = handle.answer.remote(method, (), {})
    answer: tuple[str, Any] = response.result(timeout_s=SHUTDOWN_S)
    return answer
