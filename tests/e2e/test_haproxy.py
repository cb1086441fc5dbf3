"""Serve's HAProxy in place of its proxies: the same answers, aborts and ends, and what dies there comes back."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.e2e.census import descendants
from tests.e2e.clients.place import NAMED, SETTINGS
from tests.e2e.server import Server, running, wait_until
from tests.ingress.keyed import ACME, OPS

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[2]
PROGRAM, INGRESS = "haproxy", "ray::ServeReplica:remora:ingress"
BACK_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = {**SETTINGS, "ingress": {"haproxy": True, "replicas": 2}}
    with running(tmp_path_factory.mktemp("haproxy"), config) as server:
        server.http.headers["authorization"] = f"Bearer {OPS}"
        yield server


def named(server: Server, name: str) -> list[int]:
    """Processes of this server whose title begins with, or whose program is, `name`."""
    found = []
    for pid in descendants(server.process.pid):
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        program = title.split("\0", 1)[0].rsplit("/", 1)[-1]
        if title.startswith(name) or program == name:
            found.append(pid)
    return found


def ask(server: Server, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0, **fields}
    return httpx.post(
        f"{server.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {ACME}"}, timeout=60
    )


def answers(server: Server) -> bool:
    try:
        return ask(server).status_code == 200
    except httpx.TransportError:
        return False


def test_it_is_haproxy_that_answers(server: Server) -> None:
    assert named(server, PROGRAM)
    assert len(named(server, INGRESS)) == 2


def test_every_clients_script_passes_behind_it(server: Server) -> None:
    """E3, E4, E5, I2."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/e2e/clients"],
        cwd=REPOSITORY,
        env={**os.environ, NAMED: server.url},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]


def test_a_request_has_one_name(server: Server) -> None:
    """E4: the header once, and the same in the body of an error."""
    wrong = ask(server, max_tokens=-1)
    assert wrong.status_code == 400
    assert wrong.headers.get_list("x-request-id") == [wrong.json()["error"]["request_id"]]


@pytest.mark.parametrize("stream", [True, False])
def test_a_closed_socket_is_an_abort(server: Server, stream: bool) -> None:
    """A6: the worker's pages come back at once, and the session goes on from where it was."""
    session = {"id": f"left-{stream}", "create": True}
    assert ask(server, session=session).status_code == 200
    body = {
        "messages": [{"role": "user", "content": "more"}],
        "max_tokens": 7000,
        "ignore_eos": True,
        "stream": stream,
        "session": {"id": session["id"]},
    }
    data = orjson.dumps(body)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ACME}\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        wait_until(lambda: server.pages("request_owned") > 0, 30)
    wait_until(lambda: server.pages("request_owned") == 0, 5)
    assert ask(server, session={"id": session["id"]}).json()["session"]["turn"] == 2


def test_a_killed_ingress_is_replaced(server: Server) -> None:
    """E6: meanwhile the other one answers."""
    victim, _ = named(server, INGRESS)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: answers(server), BACK_S)
    wait_until(lambda: len(named(server, INGRESS)) == 2, BACK_S)
    assert all(answers(server) for _ in range(8))


def test_a_killed_haproxy_comes_back(server: Server) -> None:
    """T1: sessions are none of its business."""
    assert ask(server, session={"id": "kept", "create": True}).status_code == 200
    for pid in named(server, PROGRAM):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: answers(server), BACK_S)
    assert ask(server, session={"id": "kept"}).json()["session"]["turn"] == 2


def test_a_second_server_on_the_same_machine(server: Server, tmp_path: Path) -> None:
    """Each has its own ports, and the first goes on when the second ends."""
    with running(tmp_path, {"workers": {"runner": "toy"}, "ingress": {"haproxy": True}}) as second:
        assert ask(second).status_code == 200
        assert ask(server).status_code == 200
    assert ask(server).status_code == 200


def test_stopping_leaves_no_process(server: Server) -> None:
    """The last test: it ends the server."""
    pids = list(descendants(server.process.pid))
    assert server.stop(signal.SIGINT) == 0
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 60)
