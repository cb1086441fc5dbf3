"""The whole head node dies and another comes up in its place, as KubeRay does it: Ray's own state and the sessions in
Redis, workers and an ingress on a node that lives on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from cluster import environment
from tests.cluster.redis_rig import redis_server
from tests.e2e.oracles import ToyOracle
from tests.e2e.server import free_port, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(400)]

MARK = "REMORA_NODE"
"""In the environment of all processes of a node: which one it is."""
RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--object-store-memory", str(100 * 2**20)]
PATIENCE = {"RAY_raylet_start_wait_time_s": "120", "RAY_gcs_rpc_server_reconnect_timeout_s": "300"}
"""By default, nodes and workers end when Ray's control service is away for a minute."""
UP_S = 150.0
CUT_AT_MOST = 10
DEPLOY = """
import json, sys
import ray
from ray import serve
from cluster import app
address, port, settings = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
ray.init(address=address, log_to_driver=False)
serve.start(proxy_location="EveryNode", http_options={"host": "127.0.0.1", "port": port})
options = {"num_cpus": 0, "resources": {"edge": 0.001}}
app.IngressDeployment = app.IngressDeployment.options(ray_actor_options=options)
serve.run(app.app(settings), name="remora", route_prefix="/")
"""


class Nodes:
    """`ray start`ed, and killed with all that runs on them."""

    def __init__(self, folder: Path, redis_port: int) -> None:
        self._folder = folder
        self._redis_port = redis_port
        self._run = uuid.uuid4().hex
        self._port = free_port()
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._temporary: list[str] = []

    @property
    def address(self) -> str:
        from ray.util import get_node_ip_address

        return f"{get_node_ip_address()}:{self._port}"

    def start_head(self, name: str) -> None:
        """Each with a folder of its own, as on another machine. Short: there will be sockets in it."""
        self._temporary.append(tempfile.mkdtemp(prefix="h-"))
        options = ["--head", "--port", str(self._port), "--num-cpus", "0", "--include-dashboard", "false"]
        options += ["--temp-dir", self._temporary[-1]]
        self._start(name, options, RAY_REDIS_ADDRESS=f"127.0.0.1:{self._redis_port}")

    def start(self, name: str) -> None:
        self._start(name, ["--address", self.address, "--num-cpus", "2", "--resources", '{"edge": 1}'])

    def kill(self, name: str) -> None:
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # It has ended meanwhile.
                if f"{MARK}={self._run} {name}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)
        self._started[name].wait(60)

    def close(self) -> None:
        for name in [*self._started]:
            self.kill(name)
        for folder in self._temporary:
            shutil.rmtree(folder, ignore_errors=True)

    def environment(self, name: str) -> dict[str, str]:
        return {**os.environ, **PATIENCE, MARK: f"{self._run} {name}"}

    def _start(self, name: str, options: list[str], **more: str) -> None:
        log = self._folder / f"{name}.log"
        with log.open("wb") as out:
            process = self._started[name] = subprocess.Popen(
                [*RAY, *options],
                env={**self.environment(name), **more},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(lambda: b"will now block" in log.read_bytes() or process.poll() is not None, UP_S)
        assert process.poll() is None, log.read_text()


class Served:
    """The application, as clients see it: by way of whichever node's proxy answers."""

    def __init__(self, port: int) -> None:
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=100)
        self.contexts: dict[str, list[int]] = {}
        self.turns: dict[str, int] = {}

    def turn(self, name: str, **session: Any) -> str:
        """The worker that answered, on the whole history."""
        context, number = self.contexts.get(name, []), self.turns.get(name, 0) + 1
        words = f"{name}, turn {number}"
        body = {
            "messages": [{"role": "user", "content": words}],
            "max_tokens": 8,
            "temperature": 0,
            "rid": f"{name}/{number}",
            "session": {"id": name, **session},
        }
        answer = self._sent(body)
        assert answer.status_code == 200, answer.text
        oracle, tree = ToyOracle(), answer.json()
        prompt = oracle.prompt(context, words, named=False)
        output = oracle.output(prompt, 8)
        assert tree["choices"][0]["message"]["content"] == bytes(output).decode()
        assert tree["session"]["turn"] == number
        self.contexts[name], self.turns[name] = [*prompt, *output], number
        worker: str = tree["session"]["worker"]
        return worker

    def _sent(self, body: dict[str, Any]) -> httpx.Response:
        """Sent again by its rid when the connection was cut: some lead to the proxy that dies with the head."""
        for _ in range(CUT_AT_MOST):
            with suppress(httpx.NetworkError, httpx.RemoteProtocolError):
                return self.http.post("/v1/chat/completions", json=body)
            time.sleep(0.2)
        return self.http.post("/v1/chat/completions", json=body)

    def workers(self) -> dict[str, int]:
        """Processes of those that are ready; nobody while the pool is away."""
        try:
            answer = self.http.get("/v1/stats", timeout=5)
            rows = answer.json()["workers"] if answer.status_code == 200 else []
        except httpx.TransportError:
            return {}
        return {row["id"]: row["pid"] for row in rows if row["state"] == "ready"}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Nodes, Served]]:
    environment.prepare()
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    with redis_server(tmp_path / "redis", *durable) as redis:
        nodes = Nodes(tmp_path, redis.port)
        try:
            nodes.start_head("head")
            nodes.start("node")
            port = free_port()
            settings = orjson.dumps(
                {
                    "workers": {"count": 2, "runner": "toy", "num_cpus": 1},
                    "engine": {"kv_tokens": 4096},
                    "store": {"url": redis.url, "prefix": "head"},
                    "cluster": {"heartbeat_s": 0.3, "suspect_s": 1.5, "dead_s": 4.0, "pool_lease_s": 300.0},
                }
            ).decode()
            command = [sys.executable, "-c", DEPLOY, nodes.address, str(port), settings]
            subprocess.run(command, env=nodes.environment("head"), check=True, timeout=UP_S)
            yield nodes, Served(port)
        finally:
            nodes.close()


def test_sessions_go_on_while_the_head_is_gone_and_the_next_head_finds_everything(nodes: tuple[Nodes, Served]) -> None:
    """T3, T4, T6, P1, field case N48: the head dies with control service, Serve controller, pool and proxy. Turns go
    on, on the node that lives; the next head's pool adopts the workers that are there, moves nobody, and replaces the
    one that dies after that."""
    rig, served = nodes
    wait_until(lambda: len(served.workers()) == 2, UP_S)
    before = served.workers()
    names = [f"s{number}" for number in range(4)]
    owners = {name: served.turn(name, create=True) for name in names}
    rig.kill("head")
    for _ in range(5):
        assert {name: served.turn(name) for name in names} == owners
    rig.start_head("next head")
    wait_until(lambda: served.workers() == before, UP_S)
    assert {name: served.turn(name) for name in names} == owners
    os.kill(before[owners["s0"]], signal.SIGKILL)
    for name in names:
        assert (served.turn(name) == owners[name]) == (owners[name] != owners["s0"])
        info = served.http.get(f"/v1/sessions/{name}").json()
        assert (info["turns"], info["epoch"]) == (served.turns[name], 1 + (owners[name] == owners["s0"]))
    wait_until(lambda: len(served.workers()) == 2, UP_S)
