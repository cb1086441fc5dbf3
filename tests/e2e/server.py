"""A Remora server in a process of its own, started as a user starts it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

START_S = 180.0
STOP_S = 60.0


class Server:
    """`url` answers once the constructor returns. Raises AssertionError with the output when it did not start."""

    def __init__(self, folder: Path, config: dict[str, Any], **environment: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        config.setdefault("store", {}).setdefault("url", f"sqlite:{folder / 'sessions.sqlite'}")
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cluster.cli", "serve"],
            env={**os.environ, "PORT": str(self.port), "CONFIG": str(path), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._await_ready()
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while not any(self.url in line for line in self.lines):
            ended = self.process.poll() is not None
            assert not ended, "the server ended:\n" + "\n".join(self.lines)
            assert time.monotonic() < deadline, "the server did not start:\n" + "\n".join(self.lines)
            time.sleep(0.1)

    def stats(self) -> dict[str, Any]:
        return self.http.get("/v1/stats").json()

    def workers(self) -> list[dict[str, Any]]:
        """Workers that answer."""
        return [row for row in self.stats()["workers"] if "pages" in row]

    def pages(self, owner: str) -> int:
        return sum(row["pages"][owner] for row in self.workers())

    def session(self, session_id: str) -> dict[str, Any]:
        return self.http.get(f"/v1/sessions/{session_id}").json()

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end. The exit status."""
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(STOP_S)

    def kill(self) -> None:
        """Whatever is left after a failed test."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)


@contextmanager
def running(folder: Path, config: dict[str, Any], **environment: str) -> Iterator[Server]:
    server = Server(folder, config, **environment)
    try:
        yield server
        server.stop()
    finally:
        server.kill()


def wait_until(holds: Callable[[], bool], within_s: float = 15.0) -> float:
    """Seconds until it held. Raises AssertionError when it did not in time."""
    start = time.monotonic()
    while not holds():
        assert time.monotonic() - start < within_s, f"did not become true within {within_s} s"
        time.sleep(0.01)
    return time.monotonic() - start


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
