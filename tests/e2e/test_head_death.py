"""The head of the Ray cluster dies with everything on it; another server goes on from the sessions' file."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.runner.toy import toy_continuation
from tests.e2e.census import descendants
from tests.e2e.oracles import ToyOracle
from tests.e2e.server import Server, running, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

CONFIG: dict[str, Any] = {"workers": {"runner": "toy", "count": 1}}
GCS = "gcs_server"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path, dict(CONFIG))
    try:
        yield started
    finally:
        started.kill()


def turn(server: Server, number: int) -> dict[str, Any]:
    answer = server.http.post(
        "/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": f"turn {number}"}],
            "max_tokens": 8,
            "temperature": 0,
            "rid": f"t{number}",
            "session": {"id": "s"},
        },
    )
    assert answer.status_code == 200, answer.text
    tree: dict[str, Any] = answer.json()
    return tree


def expected(turns: int) -> str:
    """The text of the last of so many turns."""
    context: list[int] = []
    text = ""
    for number in range(1, turns + 1):
        context = ToyOracle().prompt(context, f"turn {number}", named=False)
        output = toy_continuation(context, 8)
        context, text = [*context, *output], bytes(output).decode()
    return text


def test_turns_outlive_the_head_and_all_that_was_on_it(server: Server, tmp_path: Path) -> None:
    """T1, T2: every process is killed at once; the next server has each acknowledged turn, tells it again, and goes on
    behind it."""
    assert server.http.post("/v1/sessions", json={"id": "s"}).status_code == 200
    told = [turn(server, number) for number in (1, 2)]
    everybody = list(descendants(server.process.pid))
    for pid in everybody:
        os.kill(pid, signal.SIGKILL)
    server.process.wait(60)
    wait_until(lambda: not any(map(alive, everybody)), 30)
    with running(tmp_path, dict(CONFIG)) as other:
        again = turn(other, 2)
        assert again["replayed"]
        assert again["choices"] == told[1]["choices"]
        third = turn(other, 3)
        assert third["session"]["turn"] == 3
        assert third["choices"][0]["message"]["content"] == expected(3)


def test_what_runs_goes_on_for_a_while_without_ray_s_control_service(server: Server) -> None:
    """T4: clients of a session that has its worker do not notice that the control service is dead."""
    assert server.http.post("/v1/sessions", json={"id": "s"}).status_code == 200
    turn(server, 1)
    (gcs,) = (pid for pid in descendants(server.process.pid) if GCS in name(pid))
    os.kill(gcs, signal.SIGKILL)
    wait_until(lambda: not alive(gcs), 10)
    for number in range(2, 8):
        assert turn(server, number)["choices"][0]["message"]["content"] == expected(number)


def name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
