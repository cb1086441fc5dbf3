"""A running server whose HTTP proxy, and then whose only ingress, is killed with SIGKILL."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.census import descendants
from tests.e2e.server import Server, running, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(240)]

CONFIG: dict[str, Any] = {"workers": {"runner": "toy", "count": 1, "toy_step_s": 0.02}}
PROXY, INGRESS = b"ray::ProxyActor", b"ray::ServeReplica:remora:ingress"
BACK_S = 25.0
"""Serve by itself looks thrice, every ten seconds, before it starts another proxy."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("server"), CONFIG) as server:
        yield server


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hello"}]
    return {"messages": messages, "max_tokens": 8, "session": {"id": "s"}, **fields}


def ask(server: Server, **fields: Any) -> httpx.Response | None:
    """None: nobody answered."""
    try:
        return httpx.post(f"{server.url}/v1/chat/completions", json=body(**fields), timeout=100)
    except httpx.TransportError:
        return None


def answered(server: Server, **fields: Any) -> bool:
    answer = ask(server, **fields)
    return answer is not None and answer.status_code == 200


def killed(server: Server, title: bytes) -> int:
    (pid,) = (pid for pid in descendants(server.process.pid) if titled(pid).startswith(title))
    os.kill(pid, signal.SIGKILL)
    return pid


def titled(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_killed_proxy_is_replaced_within_seconds(server: Server) -> None:
    """T1, T4: sessions are none of its business; the turn that nobody answered runs once."""
    assert server.http.post("/v1/sessions", json={"id": "s"}).status_code == 200
    assert answered(server, rid="first")
    killed(server, PROXY)
    wait_until(lambda: answered(server, rid="second"), BACK_S)
    assert httpx.get(f"{server.url}/v1/sessions/s").json()["turns"] == 2


def test_what_a_killed_ingress_was_asked_for_is_ended_and_can_be_asked_again(server: Server) -> None:
    """T2, E6: the stream is cut, its turn ends on the worker within the ingress's lease, and runs once when it is
    asked for again, behind all that was acknowledged."""
    sent = body(rid="third", max_tokens=400, stream=True)
    before = httpx.get(f"{server.url}/v1/sessions/s").json()["turns"]
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=sent, timeout=100) as stream:
        lines = stream.iter_lines()
        next(lines)
        killed(server, INGRESS)
        with pytest.raises(httpx.TransportError):
            list(lines)
    wait_until(lambda: answered(server, rid="fourth"), 40)
    assert httpx.get(f"{server.url}/v1/sessions/s").json()["turns"] == before + 1
    assert answered(server, rid="third", max_tokens=400)
    again = ask(server, rid="third", max_tokens=400)
    assert again is not None
    assert again.json()["replayed"]
    assert httpx.get(f"{server.url}/v1/sessions/s").json()["turns"] == before + 2
    (row,) = httpx.get(f"{server.url}/v1/stats").json()["workers"]
    assert row["pages"]["request_owned"] == 0
