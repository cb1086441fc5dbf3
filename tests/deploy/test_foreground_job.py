"""`remora serve` itself as a job: it lives as long as the job does."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.deploy.head import ROOT, Head
from tests.deploy.test_jobs import toy_options
from tests.e2e.server import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]


def test_stopping_the_job_ends_all_that_it_started_and_another_can_start(head: Head, tmp_path: Path) -> None:
    """N69: workers, ingress and store are gone, the store's file is closed, and the same command works again."""
    for round_ in ("first", "second"):
        submit(head, round_, tmp_path)
        head.await_workers("", 1)
        answer = head.turn("", "toy", "kept", "hello", **({"create": True} if round_ == "first" else {}))
        assert (answer.status_code, answer.json()["session"]["turn"]) == (200, 1 if round_ == "first" else 2)
        done = head.run("ray", "job", "stop", "--address", head.dashboard, round_)
        assert f"Job '{round_}' was stopped" in done.stdout
        stopped_at = time.monotonic()
        wait_until(lambda: not head.actors(), within_s=100)
        assert not Path(f"{tmp_path / 's.sqlite'}-wal").exists(), "the store was not closed"
        wait_until(lambda: not head.applications(), within_s=30 - (time.monotonic() - stopped_at))


def submit(head: Head, name: str, folder: Path) -> None:
    command = (sys.executable, "-m", "cluster.cli", "serve", *toy_options(head, folder))
    job = ("--no-wait", "--submission-id", name, "--address", head.dashboard, "--working-dir", ROOT)
    done = head.run("ray", "job", "submit", *job, "--", *command)
    assert done.returncode == 0, done.stdout
