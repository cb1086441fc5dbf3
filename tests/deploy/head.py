"""A Ray head with dashboard and job agent in processes of its own, started and used with the tools that people use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from cluster import environment, processes
from tests.e2e.server import free_port

BIN = Path(sys.executable).parent
ROOT = environment.code_root()
COMMAND_S = 150.0
READY_S = 120.0
OBJECT_STORE_BYTES = 100 * 2**20


class Head:
    """`dashboard`: where `serve` and `ray job` turn to. `http`: where Serve's proxy answers, once there is one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self.dashboard = f"http://127.0.0.1:{free_port()}"
        self.port = free_port()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)
        environment.prepare()
        self.environ = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "PYTHONPATH")}
        self._start()

    def _start(self) -> None:
        options = {
            "port": self.address.rpartition(":")[2],
            "node-ip-address": "127.0.0.1",
            "dashboard-host": "127.0.0.1",
            "dashboard-port": self.dashboard.rpartition(":")[2],
            "dashboard-agent-listen-port": free_port(),
            "ray-client-server-port": free_port(),
            "num-cpus": 4,
            "object-store-memory": OBJECT_STORE_BYTES,
            "temp-dir": self.folder,
        }
        done = self.run("ray", "start", "--head", *(f"--{name}={value}" for name, value in options.items()))
        assert done.returncode == 0, done.stdout

    def run(self, tool: str, *arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
        """A command line tool of this virtual environment, to its end; its output and errors are one text."""
        return subprocess.run(
            [BIN / tool, *map(str, arguments)],
            env={**self.environ, **environ},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )

    def serve_deploy(self, path: Path, config: dict[str, Any]) -> None:
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        done = self.run("serve", "deploy", "--address", self.dashboard, path)
        assert done.returncode == 0, done.stdout

    def applications(self) -> dict[str, dict[str, Any]]:
        """What Serve says of each, by name."""
        found: dict[str, dict[str, Any]] = httpx.get(f"{self.dashboard}/api/serve/applications/", timeout=60).json()
        return found["applications"]

    def actors(self) -> set[tuple[str, str]]:
        """(namespace, name) of our detached actors that live."""
        answer = httpx.get(f"{self.dashboard}/api/v0/actors", params={"detail": 1, "limit": 1000}, timeout=60).json()
        rows = answer["data"]["result"]["result"]
        return {
            (row["ray_namespace"], row["name"])
            for row in rows
            if row["name"].startswith("remora:") and row["state"] != "DEAD"
        }

    def await_workers(self, prefix: str, count: int) -> list[str]:
        """Ids of exactly so many workers, all ready, of the application under this path."""
        deadline = time.monotonic() + READY_S
        rows: list[dict[str, Any]] = []
        while time.monotonic() < deadline:
            rows = self.workers(prefix)
            if len(rows) == count and all(row["state"] == "ready" for row in rows):
                return [row["id"] for row in rows]
            time.sleep(0.1)
        raise AssertionError(f"{prefix} has not {count} workers: {rows}; {self.applications()}")

    def workers(self, prefix: str) -> list[dict[str, Any]]:
        try:
            answer = self.http.get(f"{prefix}/v1/stats")
        except httpx.TransportError:
            return []  # No proxy yet.
        rows: list[dict[str, Any]] = answer.json()["workers"] if answer.status_code == 200 else []
        return rows

    def turn(self, prefix: str, model: str, session: str, text: str, **fields: Any) -> httpx.Response:
        body = {
            "model": model,
            "temperature": 0,
            "max_tokens": 8,
            "messages": [{"role": "user", "content": text}],
            "session": {"id": session, **fields},
        }
        return self.http.post(f"{prefix}/v1/chat/completions", json=body)


@contextmanager
def running_head() -> Iterator[Head]:
    folder = Path(tempfile.mkdtemp(prefix="remora-"))  # Ray's sockets need a short path.
    try:
        head = Head(folder)
        yield head
        head.http.close()
    finally:
        processes.end_users(folder)
        shutil.rmtree(folder, ignore_errors=True)
