"""SIGTERM to a worker: it drains, with streams running and requests waiting, and another takes its place."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.server import Server, running, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(240)]

GRACE_S = 6.0
CONFIG: dict[str, Any] = {
    "workers": {"count": 2, "runner": "toy", "toy_step_s": 0.02},
    "engine": {"kv_tokens": 16384, "max_running": 4},
    "cluster": {"namespace": "sigterm", "heartbeat_s": 0.1, "drain_grace_s": GRACE_S},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("sigterm"), CONFIG) as server:
        yield server


class Stream(threading.Thread):
    """A turn that is read to the end of its answer."""

    def __init__(self, server: Server, session: str, tokens: int) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._body = {
            "model": "toy",
            "stream": True,
            "temperature": 0,
            "max_tokens": tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": "go"}],
            "session": {"id": session},
        }
        self.status = 0
        self.events: list[dict[str, Any]] = []
        self.marked = False
        """Whether the end marker came."""
        self.broken: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with self._server.http.stream("POST", "/v1/chat/completions", json=self._body) as answer:
                self.status = answer.status_code
                for line in answer.iter_lines():
                    if line == "data: [DONE]":
                        self.marked = True
                    elif line.startswith("data: "):
                        self.events.append(json.loads(line.removeprefix("data: ")))
        except Exception as error:  # Looked at by the test: a reset is what must not be.
            self.broken = error

    @property
    def pieces(self) -> int:
        return sum(bool(choice["delta"].get("content")) for event in self.events for choice in event.get("choices", ()))

    @property
    def finish(self) -> str | None:
        ends = [choice["finish_reason"] for event in self.events for choice in event.get("choices", ())]
        return next((end for end in ends if end), None)

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [event["error"] for event in self.events if "error" in event]


def sessions_of_one_worker(server: Server, name: str, count: int) -> tuple[str, list[str]]:
    """A worker, and that many sessions that it owns."""
    owned: dict[str, list[str]] = {}
    for number in range(4 * count):
        session = f"{name}-{number}"
        opened = server.http.post("/v1/sessions", json={"id": session}).json()
        owned.setdefault(opened["worker"], []).append(session)
        if len(owned[opened["worker"]]) == count:
            return opened["worker"], owned[opened["worker"]]
    raise AssertionError(f"no worker got {count} sessions: {owned}")


def terminate(server: Server, worker: str) -> None:
    (pid,) = (row["process"]["pid"] for row in server.workers() if row["id"] == worker)
    os.kill(pid, signal.SIGTERM)


def ready(server: Server) -> set[str]:
    return {row["id"] for row in server.stats()["workers"] if row["state"] == "ready"}


def test_streams_that_end_within_the_grace_are_not_disturbed(server: Server) -> None:
    """N70, T5: tokens go on after the signal, what waits is answered too, nothing new comes in, a new worker comes."""
    wait_until(lambda: len(ready(server)) == 2, within_s=60)
    worker, sessions = sessions_of_one_worker(server, "short", 6)
    streams = [Stream(server, session, tokens=60) for session in sessions]
    wait_until(lambda: sum(stream.pieces > 0 for stream in streams) >= 4, within_s=100)
    terminate(server, worker)
    seen = [stream.pieces for stream in streams]
    assert not any(stream.finish for stream in streams)
    wait_until(lambda: worker not in ready(server), within_s=100)
    opened = server.http.post("/v1/sessions", json={"id": "after the signal"}).json()
    assert opened["worker"] != worker
    for stream in streams:
        stream.join(60)
    for stream, before in zip(streams, seen, strict=True):
        assert (stream.broken, stream.status, stream.errors, stream.finish) == (None, 200, [], "length")
        assert stream.marked
        assert stream.pieces > before
    wait_until(lambda: len(ready(server)) == 2 and worker not in ready(server), within_s=60)
    for session in sessions:
        assert server.session(session)["turns"] == 1


def test_streams_that_outlast_the_grace_end_with_an_error_and_the_marker(server: Server) -> None:
    """N70, E2, E3: one event that says why and that it may be tried again, then the end marker; never a reset. What
    waited runs elsewhere, unseen."""
    wait_until(lambda: len(ready(server)) == 2, within_s=60)
    worker, sessions = sessions_of_one_worker(server, "long", 6)
    streams = [Stream(server, session, tokens=1500) for session in sessions[:4]]
    wait_until(lambda: all(stream.pieces > 0 for stream in streams), within_s=100)
    waiting = [Stream(server, session, tokens=8) for session in sessions[4:]]
    wait_until(lambda: sum(row["waiting"] for row in server.workers() if row["id"] == worker) == 2, within_s=100)
    terminate(server, worker)
    for stream in (*streams, *waiting):
        stream.join(90)
    for stream in streams:
        assert stream.broken is None
        (error,) = stream.errors
        assert error["reason"] in ("worker_draining", "shutdown")
        assert error["retryable"] is True
        assert "error" in stream.events[-1]
        assert stream.marked
    for stream in waiting:
        assert (stream.broken, stream.status, stream.errors, stream.finish) == (None, 200, [], "length")
    wait_until(lambda: len(ready(server)) == 2 and worker not in ready(server), within_s=60)
    for session in sessions[:4]:
        assert server.session(session)["turns"] == 0
