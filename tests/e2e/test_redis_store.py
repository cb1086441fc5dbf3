"""`remora serve` with its sessions in Redis, and the faults of that as a client sees them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.redis_rig import RedisServer, redis_server
from tests.e2e.server import Server, running, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

PASSWORD = "hunter2"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    folder = tmp_path_factory.mktemp("redis")
    with redis_server(folder, "--appendonly", "yes", "--appendfsync", "always", password=PASSWORD) as started:
        yield started


def config(redis: RedisServer) -> dict[str, Any]:
    return {
        "workers": {"runner": "toy", "count": 2},
        "store": {"url": redis.url, "commit_timeout_s": 2.0, "prefix": "e2e"},
    }


@pytest.fixture(scope="module")
def server(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("serve"), config(redis)) as started:
        yield started


def say(server: Server, session_id: str, *, create: bool = False) -> httpx.Response:
    session = {"id": session_id, "create": True} if create else {"id": session_id}
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": "toy", "max_tokens": 5, "session": session, "messages": messages}
    return server.http.post("/v1/chat/completions", json=body)


def turns(server: Server, session_id: str) -> int:
    number: int = server.session(session_id)["turns"]
    return number


def test_a_workers_death_costs_a_prefill_and_no_turn(server: Server) -> None:
    """T1, T4: the next owner reads the history from Redis by itself."""
    first = say(server, "moved", create=True).json()
    owner = first["session"]["worker"]
    (pid,) = [row["pid"] for row in server.workers() if row["id"] == owner]
    signal_process(pid)
    second = say(server, "moved")
    assert second.status_code == 200, second.text
    assert second.json()["session"]["turn"] == 2
    assert second.json()["session"]["worker"] != owner
    assert second.json()["usage"]["prompt_tokens"] > first["usage"]["total_tokens"]


def test_a_turn_that_redis_does_not_answer_for_is_an_error_and_the_session_goes_on(
    server: Server, redis: RedisServer
) -> None:
    """T1, T6: not told as done, with a clear reason, within the time limit; once Redis answers again, so does all."""
    assert say(server, "late", create=True).status_code == 200
    redis.freeze()
    try:
        with ThreadPoolExecutor(2) as threads:
            answers = list(threads.map(lambda _: say(server, "late"), range(2)))
        assert server.http.get("/health").status_code == 200
    finally:
        redis.thaw()
    reasons = {answer.json()["error"]["reason"] for answer in answers}
    assert {answer.status_code for answer in answers} <= {500, 503, 409}
    assert "internal" in reasons
    wait_until(lambda: say(server, "late").status_code == 200)
    done = turns(server, "late")
    assert done in (2, 3, 4), "the turn of the frozen time may have been stored after all"
    assert say(server, "late").json()["session"]["turn"] == done + 1


def test_redis_restarts_under_a_running_server(server: Server, redis: RedisServer) -> None:
    """T1: what was acknowledged is there; nothing needs to be told."""
    assert say(server, "restart", create=True).status_code == 200
    redis.kill()
    redis.start()
    wait_until(lambda: say(server, "restart").status_code == 200)
    assert say(server, "restart").json()["session"]["turn"] >= 3


def test_stats_tell_of_redis_and_no_password(server: Server) -> None:
    store = server.stats()["store"]
    assert store["append_only_file"] is True
    assert store["sessions"] >= 3
    assert PASSWORD not in server.http.get("/v1/stats").text
    assert PASSWORD not in "\n".join(server.lines)


@pytest.mark.slow
def test_another_server_goes_on_with_the_sessions(server: Server, redis: RedisServer, tmp_path: Path) -> None:
    """T1: the first one stops, and its last turns are there. The last test: it ends the module's server."""
    say(server, "next", create=True)
    before = turns(server, "next")
    assert server.stop() == 0
    with running(tmp_path, config(redis)) as other:
        assert say(other, "next").json()["session"]["turn"] == before + 1
        assert other.http.delete("/v1/sessions/next").status_code == 200
        assert other.http.get("/v1/sessions/next").status_code == 404


def signal_process(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
