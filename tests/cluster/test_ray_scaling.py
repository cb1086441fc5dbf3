"""A running server whose workers go from one to three, to one and to none, while clients talk to it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.server import Server

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

CONFIG: dict[str, Any] = {
    "workers": {"runner": "toy", "count": 1, "toy_step_s": 0.01},
    "cluster": {"heartbeat_s": 0.2},
    "autoscale": {
        "enabled": True,
        "min_workers": 0,
        "max_workers": 3,
        "requests_per_worker": 4,
        "up_delay_s": 1.0,
        "down_delay_s": 3.0,
        "idle_s": 4.0,
    },
}
CHATS = 16
"""At once: four to a worker want four workers, of which three may be."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"), CONFIG)
    yield running
    assert running.stop(signal.SIGINT) == 0


class Chats:
    """Clients that go on until `stop`: with a session, or without one. `failures`: every answer that was not as it
    should be."""

    def __init__(self, server: Server) -> None:
        self.turns: dict[str, int] = {}
        self.failures: list[str] = []
        self.workers: set[str] = set()
        self._url = server.url
        self._stopping: set[str] = set()
        self._threads: dict[str, threading.Thread] = {}

    def start(self, name: str) -> None:
        self._threads[name] = threading.Thread(target=self._go_on, args=(name,), daemon=True)
        self._threads[name].start()

    def stop(self, name: str) -> None:
        self._stopping.add(name)
        self._threads[name].join()

    def _go_on(self, name: str) -> None:
        self.turns[name] = 0
        with httpx.Client(base_url=self._url, timeout=60) as http:
            while name not in self._stopping:
                self._turn(http, name)

    def _turn(self, http: httpx.Client, name: str) -> None:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 24}
        if not name.startswith("free"):
            body["session"] = {"id": name, "mode": "streaming", "create": not self.turns[name]}
        answer = http.post("/v1/chat/completions", json=body)
        if answer.status_code != 200:
            self.failures.append(f"{name}: {answer.status_code} {answer.text}")
            return
        tree = answer.json()
        self.turns[name] += 1
        if "session" in body and tree["session"]["turn"] != self.turns[name]:
            self.failures.append(f"{name}: turn {tree['session']['turn']} instead of {self.turns[name]}")
        if tree["choices"][0]["finish_reason"] != "length":
            self.failures.append(f"{name}: {tree['choices']}")
        if "session" in body:
            self.workers.add(tree["session"]["worker"])


def states(server: Server) -> list[str]:
    return [row["state"] for row in server.stats()["workers"]]


def until(reached: Callable[[], bool], what: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def test_one_to_three_to_one_to_none_and_back_without_an_error(server: Server) -> None:
    """T5, P6: nobody who talks to it notices. Scale to zero holds the first request."""
    chats = Chats(server)
    names = [f"chat{number}" for number in range(CHATS - 4)] + [f"free{number}" for number in range(4)]
    for name in names:
        chats.start(name)
    until(lambda: states(server) == ["ready"] * 3, server.stats)
    seen = len(chats.workers)
    until(lambda: len(chats.workers) > seen or len(chats.workers) == 3 or sum(chats.turns.values()) > 400, server.stats)
    for name in names[2:]:
        chats.stop(name)
    until(lambda: states(server) == ["ready"], server.stats)
    quiet = {name: chats.turns[name] for name in names[:2]}
    until(lambda: all(chats.turns[name] > count for name, count in quiet.items()), lambda: chats.turns)
    for name in names[:2]:
        chats.stop(name)
    assert chats.failures == []
    assert all(server.session(name)["turns"] == chats.turns[name] for name in names if name.startswith("chat"))
    until(lambda: states(server) == [], server.stats)
    health = server.http.get("/health")
    assert (health.status_code, health.json()["status"]) == (200, "asleep")

    chats.start("chat-late")
    until(lambda: chats.turns.get("chat-late", 0) > 0, server.stats)
    chats.stop("chat-late")
    until(lambda: states(server) == [], server.stats)
    chats.start("free-late")
    until(lambda: chats.turns.get("free-late", 0) > 0, server.stats)
    chats.stop("free-late")
    assert chats.failures == []
    assert server.stats()["pool"]["failed_starts"] == 0
