"""`remora serve`: from a configuration to a cluster that answers, and back to nothing."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

from actors.model.errors import ModelError
from actors.records import StoreError
from cluster import environment
from cluster.http_edge import edge_environment, scheme, seldom_environment
from cluster.located import APP_NAME, model_name, with_store_file, with_vocabulary
from cluster.usage import UsageError
from configs import RemoraConfig
from configs.keys import keys_in, read_keys_file

LOOK_S = 0.25
CONNECT_S = 10.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Stop(BaseException):
    """A signal asked us to end."""


def serve(config: RemoraConfig) -> int:
    """Returns when a signal has ended it. Raises UsageError, ConfigError for what the user can mend."""
    check_port(config.ingress.host, config.ingress.port)
    check_access(config)
    os.environ.update(edge_environment(config, os.environ) | seldom_environment(os.environ))
    environment.prepare()
    with Signals() as signals:
        try:
            _run(located(with_absolute_files(config)), signals)
        except (Stop, SystemExit):  # Ray's own handler, in place while it starts, raises SystemExit.
            return 0
    return 0


def _run(config: RemoraConfig, signals: Signals) -> None:
    say(f"starting {config.workers.count} worker(s) of {model_name(config)} …")
    from cluster import ray_start  # After the environment is set: Ray reads it when it is imported.

    # While Ray's processes start; what goes wrong with it is told below, where it is imported again.
    threading.Thread(target=_import_the_rest, name="import", daemon=True).start()
    cluster = ray_start.planned(config)
    keep_logs = False
    try:
        if cluster.address is not None:
            check_address(cluster.address)
        ray_start.connect(cluster)
        signals.install()
        from cluster import ray_cluster

        ray_cluster.refuse_a_second(cluster)
        ray_cluster.deploy(cluster)
        rows = await_workers(config)
        say(ready_line(config, rows))
        threading.Event().wait()  # Until a signal raises Stop here.
    except (StoreError, RuntimeError, ConnectionError, ValueError, ray_start.RayError) as error:
        keep_logs = cluster.folder is not None
        where = f" (logs: {cluster.folder}/session_latest/logs)" if keep_logs else ""
        raise UsageError(f"{error}{where}") from error
    finally:
        from cluster import ray_cluster

        signals.force = lambda: ray_cluster.sweep(cluster, grace_s=0.0)
        signals.install()
        say("stopping …")
        ray_cluster.stop(cluster, keep_logs=keep_logs)


def _import_the_rest() -> None:
    with contextlib.suppress(Exception):
        importlib.import_module("cluster.ray_cluster")


def check_port(host: str, port: int) -> None:
    """Raises UsageError when nobody can listen there."""
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        raise UsageError(f"cannot listen on {host!r}: {error.strerror}. Choose another with HOST or --host.") from None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot listen on {host}:{port}: {reason}. Choose another with PORT or --port.") from None


def check_access(config: RemoraConfig) -> None:
    """Look at what says who may call before anything is started. Raises ConfigError, OSError."""
    given = keys_in(os.environ) or config.auth.keys or config.auth.keys_file
    if not given and config.ingress.host not in LOOPBACK:
        say(f"no API keys are set: whoever reaches {config.ingress.host} may use it (see `remora keys new --help`)")
    if config.auth.keys_file:
        read_keys_file(config.auth.keys_file)
    for log in (config.ingress.access_log, config.workers.request_log):
        if log:
            open(log, "a", encoding="ascii").close()


def check_address(address: str) -> None:
    """Raises UsageError when nobody listens at the `host:port` of a cluster to join: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "//" in address:
        return  # `auto`, `local` and the like are Ray's to judge.
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"no Ray cluster answers at RAY_ADDRESS={address}: {error}") from None


def with_absolute_files(config: RemoraConfig) -> RemoraConfig:
    """Paths of files as they mean the same to every process."""
    files = (config.auth.keys_file, config.ingress.access_log, config.workers.request_log)
    keys_file, access_log, log_of_workers = (os.path.abspath(path) if path else "" for path in files)
    return replace(
        config,
        auth=replace(config.auth, keys_file=keys_file),
        ingress=replace(config.ingress, access_log=access_log),
        workers=replace(config.workers, request_log=log_of_workers),
    )


def located(config: RemoraConfig) -> RemoraConfig:
    """Find or fetch the model before anything is started, and say where the sessions are, and whose token ids these
    are. Raises UsageError."""
    try:
        return with_store_file(with_vocabulary(config))
    except (ModelError, StoreError) as error:
        raise UsageError(str(error)) from error


def await_workers(config: RemoraConfig, application: str = APP_NAME) -> list[dict[str, Any]]:
    """Wait until all workers are ready; their rows. Raises RuntimeError with the cause when one fails to start."""
    from cluster.ray_cluster import pool_status

    give_up_at = time.monotonic() + config.cluster.start_timeout_s
    while time.monotonic() < give_up_at:
        status = pool_status(application)
        deaths = status["pool"]["deaths"]
        if deaths:
            raise RuntimeError(f"a worker failed to start: {deaths[-1]['cause']}")
        rows: list[dict[str, Any]] = status["workers"]
        if sum(row["state"] == "ready" for row in rows) >= config.workers.count:
            return rows
        time.sleep(LOOK_S)
    raise RuntimeError(f"the workers are not ready after {config.cluster.start_timeout_s:.0f} s")


def ready_line(config: RemoraConfig, rows: list[dict[str, Any]]) -> str:
    tokens = sum(int(row["kv_tokens"]) for row in rows)
    host = "127.0.0.1" if config.ingress.host in ("0.0.0.0", "::") else config.ingress.host
    url = f"{scheme(config)}://{f'[{host}]' if ':' in host else host}:{config.ingress.port}/v1"
    plural = "worker" if len(rows) == 1 else "workers"
    return f"ready: {model_name(config)} on {len(rows)} {plural}, {tokens:,} KV tokens, {url} (Ctrl-C stops it)"


def say(text: str) -> None:
    """Tell the user; a terminal that has gone away is no reason to fail."""
    try:
        print(f"remora: {text}", flush=True)
    except (BrokenPipeError, OSError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - kept open for what else is printed


class Signals:
    """The first SIGINT, SIGTERM or SIGHUP raises Stop in the main thread. Once `force` is set, because we are
    stopping, another calls it and ends this process on the spot."""

    def __init__(self) -> None:
        self.force: Callable[[], None] | None = None
        self._stopping = False
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def install(self) -> None:
        """Again after anybody else may have put a handler of its own in our place."""
        for number in self._before:
            signal.signal(number, self._on_signal)

    def __enter__(self) -> Signals:
        self.install()
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.force is not None:
            self.force()
            os._exit(128 + number)
        if not self._stopping:
            self._stopping = True
            raise Stop
