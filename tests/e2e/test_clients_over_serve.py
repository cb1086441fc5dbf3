"""Every client of `tests/e2e/clients` against `remora serve`: Ray, Serve's proxy, two ingresses, workers as actors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.clients.place import NAMED, SETTINGS
from tests.e2e.server import Server, running, wait_until
from tests.ingress.keyed import OPS

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).parents[2]
CLIENTS = "tests/e2e/clients"
LIMIT_S = 800.0

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def shared_before() -> set[str]:
    """Names of shared-memory files from before there was a server."""
    return shared_memory()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, shared_before: set[str]) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("clients"), {**SETTINGS, "ingress": {"replicas": 2}}) as server:
        server.http.headers["authorization"] = f"Bearer {OPS}"
        yield server


def test_every_clients_script_passes_against_a_server(server: Server) -> None:
    """E3, E4, E5, I2: in a process of their own, where nothing is known but an address and a key."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", CLIENTS],
        cwd=REPOSITORY,
        env={**os.environ, NAMED: server.url},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    assert " skipped" not in done.stdout.splitlines()[-1]


def test_stopping_leaves_nothing(server: Server, shared_before: set[str]) -> None:
    """SIGINT: exit status 0, no process, no Ray session, no shared-memory file of ours. The last test: it ends the
    server."""
    pids = [row["pid"] for row in server.workers()]
    assert pids
    assert server.stop(signal.SIGINT) == 0
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 60)
    assert shared_memory() <= shared_before


def shared_memory() -> set[str]:
    return {entry.name for entry in SHARED_MEMORY.iterdir()}
