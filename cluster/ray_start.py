"""Joining a Ray cluster, or starting one. It imports nothing but Ray: whoever waits for Ray's processes can import the
rest meanwhile."""

from __future__ import annotations

import functools
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from cluster.environment import PACKAGES, code_root, is_checkout
from configs import RemoraConfig

__all__ = ["Cluster", "RayError", "connect", "planned"]

OBJECT_STORE_BYTES = 128 * 2**20
"""Nothing large passes through Ray's object store."""
USAGE_STATS = "RAY_USAGE_STATS_ENABLED"


@dataclass(frozen=True, slots=True)
class Cluster:
    """`address`: the cluster to join; None to start one, which keeps its sockets and logs in `folder`."""

    config: RemoraConfig
    address: str | None
    folder: Path | None


def planned(config: RemoraConfig) -> Cluster:
    """Join the cluster that RAY_ADDRESS names, else start one on this machine that ends with this process."""
    address = os.environ.get("RAY_ADDRESS")
    return Cluster(config, address or None, None if address else Path(tempfile.mkdtemp(prefix="remora-")))


def connect(cluster: Cluster) -> None:
    """Join or start Ray. Raises ConnectionError or RuntimeError with a message for people."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if cluster.address is not None:
        modules = [str(code_root() / name) for name in PACKAGES] if is_checkout() else []
        ray.init(address=cluster.address, runtime_env={"py_modules": modules} if modules else None, **quiet)
        return
    with few_processes():
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(cluster.folder),
            **quiet,
        )


@contextmanager
def few_processes() -> Iterator[None]:
    """A cluster that ends with its command has no use for some of what Ray starts, and waits for, on each: what sends
    logs to the driver (none are sent), what asks a cloud for more nodes, what counts usage (that is off), and the
    server of each node for a dashboard that is not there. `ray.init` has no arguments for these. Another version of Ray
    that keeps them elsewhere starts them.

    Who wants Ray's tools starts Ray, and has it joined (RAY_ADDRESS)."""
    from ray._private import node, parameter, utils

    without: list[tuple[Any, str, Any]] = []
    if hasattr(parameter, "RayParams"):
        without.append((parameter, "RayParams", functools.partial(parameter.RayParams, **_not_started())))
    if hasattr(utils, "get_dashboard_dependency_error"):
        without.append((utils, "get_dashboard_dependency_error", lambda: ImportError("there is no dashboard")))
    if hasattr(node.Node, "start_api_server") and os.environ.get(USAGE_STATS) == "0":
        without.append((node.Node, "start_api_server", lambda self, **options: None))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in without]
    try:
        for owner, name, value in without:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _not_started() -> dict[str, bool]:
    from ray._private import parameter

    known = parameter.RayParams.__init__.__code__.co_varnames
    return {name: value for name, value in (("include_log_monitor", False), ("no_monitor", True)) if name in known}
