"""A server on Ray raylets of its own, and a direct line to one of its workers past HTTP: what the worker itself says of
its pages, every few milliseconds."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from cluster import environment
from tests.e2e.census import parent_of
from tests.e2e.server import Server, running

NAMESPACE = "abort-latency"
PATIENCE_S = 60.0
MAX_SESSIONS = 40
Stats = dict[str, Any]


class Rig:
    """`spans`: the worker lives under another raylet than the ingress. `sessions`: open ones that this worker owns."""

    def __init__(self, server: Server, handle: Any, worker_id: str, sessions: list[str], *, spans: bool) -> None:
        self.server = server
        self.worker_id = worker_id
        self.sessions = sessions
        self.spans = spans
        self.handle = handle

    def stats(self) -> Stats:
        """What the worker says just now: about a millisecond."""
        import ray

        row: Stats = ray.get(self.handle.stats.remote(), timeout=PATIENCE_S)
        return row

    def runner(self) -> str:
        """How the worker computes, in its own words."""
        return str(self.stats()["runner"])

    def until(self, holds: Callable[[Stats], bool]) -> tuple[float, float]:
        """(when it was first seen to hold, longest time between two looks until then). Raises TimeoutError."""
        last = begun = time.monotonic()
        longest = 0.0
        while True:
            stats = self.stats()
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            if holds(stats):
                return now, longest
            if now - begun > PATIENCE_S:
                raise TimeoutError(f"it did not come: {stats}")

    def at_rest(self) -> None:
        self.until(lambda stats: not stats["live"] and not stats["tables"]["unreturned"])

    def begin(self, name: str, fields: dict[str, Any], on_busy: str = "reject") -> socket.socket:
        """Send a turn of a session on a connection of its own."""
        body = orjson.dumps({"temperature": 0, "session": {"id": name, "on_busy": on_busy}, **fields})
        lines = ("POST /v1/chat/completions HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", "", "")
        connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE_S)
        connection.sendall("\r\n".join(lines).encode() + body)
        return connection


def await_token(connection: socket.socket) -> None:
    """Until the first text of a stream has come."""
    received = b""
    while b'"content":' not in received.replace(b'"content":""', b""):
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionError(f"the stream ended: {received[-400:]!r}")
        received += piece


@contextmanager
def rig(folder: Path, config: dict[str, Any], *, nodes: int, sessions: int) -> Iterator[Rig]:
    """`nodes` 1: everything under one raylet. 2: two workers under raylets of their own, and one of them, which does
    not share its raylet with the ingress, is measured."""
    environment.prepare()
    import ray
    from ray.cluster_utils import Cluster

    head_cpus = 2 if nodes == 1 else 0
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": head_cpus, "include_dashboard": False})
    try:
        if nodes > 1:
            for _ in range(nodes):
                cluster.add_node(num_cpus=1)
        count = 1 if nodes == 1 else nodes
        tree = {**config, "cluster": {"namespace": NAMESPACE}}
        tree["workers"] = {**config.get("workers", {}), "count": count, "num_cpus": 1}
        with running(folder, tree, RAY_ADDRESS=cluster.address) as server:
            ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False)
            try:
                yield _aimed(server, sessions, apart=nodes > 1)
            finally:
                ray.shutdown()
    finally:
        cluster.shutdown()


def _aimed(server: Server, sessions: int, *, apart: bool) -> Rig:
    """Choose the worker, and open sessions until it owns enough of them."""
    import ray

    stats = server.stats()
    ingress = parent_of(stats["ingress"]["process"]["pid"])
    under = {row["id"]: parent_of(row["pid"]) for row in stats["workers"]}
    chosen = sorted(worker for worker, raylet in under.items() if (raylet != ingress) == apart)
    if not chosen:
        raise RuntimeError(f"no worker's raylet is {'another' if apart else 'the same'} as the ingress's: {under}")
    worker_id, owned = chosen[0], []
    for number in range(MAX_SESSIONS):
        name = f"abort-{number}"
        made = server.http.post("/v1/sessions", json={"id": name}).json()
        if made["worker"] == worker_id:
            owned.append(name)
        if len(owned) == sessions:
            handle = ray.get_actor(f"remora:{worker_id}", namespace=NAMESPACE)
            return Rig(server, handle, worker_id, owned, spans=apart)
    raise RuntimeError(f"{worker_id} has only {len(owned)} of {MAX_SESSIONS} sessions")
