"""A running server whose pool, and then a worker, is killed with SIGKILL."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import Server

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"), {"workers": {"runner": "toy", "count": 2}})
    yield running
    assert running.stop(signal.SIGINT) == 0


def turn(server: Server, session_id: str) -> dict[str, Any]:
    answer = server.http.post(
        "/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 8,
            "session": {"id": session_id, "create": True} if session_id == "new" else {"id": session_id},
        },
    )
    assert answer.status_code == 200, answer.text
    session: dict[str, Any] = answer.json()["session"]
    return session


def until(reached: Callable[[], bool], seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def pool_process(server: Server) -> int | None:
    """The pool's replica, among the processes below the server's."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            title = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::ServeReplica:remora:pool") and server.process.pid in ancestors(int(entry.name)):
            return int(entry.name)
    return None


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            break
        pid = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
        found.append(pid)
    return found


def test_sessions_go_on_while_the_pool_is_dead_and_stay_where_they_are(server: Server) -> None:
    """P1, T4: the pool is off the token path; the next one adopts the workers."""
    for name in "abcd":
        server.http.post("/v1/sessions", json={"id": name})
    owners = {name: turn(server, name)["worker"] for name in "abcd"}
    workers = {row["id"] for row in server.workers()}
    first = pool_process(server)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert {name: turn(server, name)["worker"] for name in "abcd"} == owners
    assert turn(server, "new")["turn"] == 1
    until(lambda: pool_process(server) not in (None, first))
    assert {row["id"] for row in server.workers()} == workers
    assert {name: turn(server, name)["worker"] for name in "abcd"} == owners
    assert server.session("a")["turns"] == 3


def test_a_killed_workers_sessions_are_answered_by_another(server: Server) -> None:
    """T4: with the whole history, from the store."""
    server.http.post("/v1/sessions", json={"id": "k"})
    owner = turn(server, "k")["worker"]
    pid = next(row["pid"] for row in server.workers() if row["id"] == owner)
    os.kill(pid, signal.SIGKILL)
    moved = turn(server, "k")
    assert (moved["turn"], moved["worker"] != owner) == (2, True)
    assert server.session("k")["epoch"] == 2
    until(lambda: [row["state"] for row in server.workers()] == ["ready", "ready"])
