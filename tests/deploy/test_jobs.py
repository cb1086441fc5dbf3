"""The drivers in deploy/ as jobs: `ray job submit` of a start and of a batch, from a folder that only the job knows."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cluster.environment import PACKAGES
from tests.deploy.head import COMMAND_S, ROOT, Head
from tests.e2e.server import free_port, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

CONVERSATIONS: list[dict[str, Any]] = [
    {"id": "plain", "turns": ["one", "two", "three"]},
    {"id": "with a system message", "system": "Be brief.", "turns": ["one", "two"]},
    {"id": "größe/1?", "turns": ["one"]},
]


class Deployed:
    """A toy that a job has deployed."""

    def __init__(self, head: Head, folder: Path, started: str) -> None:
        self.head = head
        self.folder = folder
        self.started = started
        self.store = folder / "s.sqlite"


@pytest.fixture(scope="module")
def working_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What of a checkout a job needs: its code comes with the job, and from nowhere else."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in (*PACKAGES, "deploy"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def deployed(head: Head, working_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """deploy/deploy.py as a job; ended by it, too. Afterwards nothing may be left."""
    folder = tmp_path_factory.mktemp("job")
    options = toy_options(head, folder)
    done = submit(head, working_dir, "deploy.py", *options)
    assert done.returncode == 0, done.stdout
    yield Deployed(head, folder, done.stdout)
    done = driver(head, "deploy.py", "--down")
    assert done.returncode == 0, done.stdout
    assert "remora has ended" in done.stdout
    wait_until(lambda: not head.actors(), within_s=60)
    assert not Path(f"{folder / 's.sqlite'}-wal").exists(), "the store was not closed"
    head.run("serve", "shutdown", "--yes", "--address", head.dashboard)


def toy_options(head: Head, folder: Path) -> list[str]:
    settings = {
        "workers.runner": "toy",
        "engine.kv_tokens": 4096,
        "cluster.heartbeat_s": 0.1,
        "store.url": f"sqlite:{folder / 's.sqlite'}",
    }
    return ["--port", str(head.port), *(part for name in settings for part in ("--set", f"{name}={settings[name]}"))]


def submit(head: Head, working_dir: Path, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`ray job submit`, to the job's end: its output is in the answer, and its success is the exit status."""
    entrypoint = (sys.executable, f"deploy/{script}", *arguments)
    return head.run(
        "ray", "job", "submit", "--address", head.dashboard, "--working-dir", working_dir, "--", *entrypoint
    )


def driver(head: Head, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The same script without the job around it, which takes seconds."""
    return head.run("python", f"deploy/{script}", *arguments, RAY_ADDRESS=head.address)


def batch_options(deployed: Deployed, name: str, conversations: list[dict[str, Any]]) -> list[object]:
    source = deployed.folder / f"{name}.jsonl"
    source.write_text("".join(f"{json.dumps(one)}\n" for one in conversations), encoding="utf-8")
    url = f"http://127.0.0.1:{deployed.head.port}"
    options = json.dumps({"temperature": 0, "max_tokens": 4})
    output = deployed.folder / f"{name}.out.jsonl"
    return ["--url", url, "--model", "toy", "--input", source, "--output", output, "--options", options]


def answers(deployed: Deployed, name: str) -> dict[str, dict[str, Any]]:
    lines = (deployed.folder / f"{name}.out.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    assert len({one["id"] for one in found}) == len(found), "a conversation was written twice"
    return {one["id"]: one for one in found}


def test_a_job_deploys_and_leaves_it_running(deployed: Deployed) -> None:
    """N69: the job has ended, with success; what it deployed answers, with the code that came with the job."""
    assert "remora: toy on 1 worker(s), path /" in deployed.started
    assert deployed.head.turn("", "toy", "after the job", "hello", create=True).status_code == 200
    assert len(deployed.head.await_workers("", 1)) == 1


def test_a_second_start_is_refused_and_changes_nothing(deployed: Deployed) -> None:
    """N69: never two halves."""
    before = deployed.head.await_workers("", 1)
    done = driver(deployed.head, "deploy.py", *toy_options(deployed.head, deployed.folder), "--workers", 2)
    assert done.returncode == 1
    assert "deploy: remora is deployed already" in done.stdout
    assert deployed.head.await_workers("", 1) == before


def test_a_second_one_in_the_foreground_is_refused_too(deployed: Deployed) -> None:
    """N69: what is there serves on, and is not ended by the end of the one that was refused."""
    before = deployed.head.await_workers("", 1)
    options = [*toy_options(deployed.head, deployed.folder), "--port", str(free_port())]
    done = deployed.head.run("python", "-m", "cluster.cli", "serve", *options, RAY_ADDRESS=deployed.head.address)
    assert done.returncode == 1
    assert "has an application 'remora' already" in done.stdout
    assert deployed.head.await_workers("", 1) == before


def test_a_start_that_fails_says_why_and_leaves_nothing(deployed: Deployed) -> None:
    """N69: a worker that cannot start, under another name: the first application is not disturbed."""
    options = toy_options(deployed.head, deployed.folder / "other")
    broken = [*options, "--name", "broken", "--route-prefix", "/broken", "--set", f"engine.kv_tokens={10**16}"]
    (deployed.folder / "other").mkdir()
    done = driver(deployed.head, "deploy.py", *broken)
    assert done.returncode == 1
    assert "deploy: a worker failed to start: " in done.stdout
    assert "allocate" in done.stdout
    wait_until(lambda: {namespace for namespace, _ in deployed.head.actors()} == {"remora"}, within_s=60)
    assert "broken" not in deployed.head.applications()


def test_a_job_runs_a_batch_of_conversations(deployed: Deployed, working_dir: Path) -> None:
    """S1, K1: every turn has the turns before it as its context, from the cache; sessions are closed at the end."""
    done = submit(deployed.head, working_dir, "batch.py", *batch_options(deployed, "whole", CONVERSATIONS))
    assert done.returncode == 0, done.stdout
    assert "3 conversations run, 0 done before, 0 failed" in done.stdout
    found = answers(deployed, "whole")
    assert set(found) == {one["id"] for one in CONVERSATIONS}
    for conversation in CONVERSATIONS:
        got = found[conversation["id"]]["answers"]
        assert len(got) == len(conversation["turns"])
        for before, after in pairwise(got):
            history = before["usage"]["total_tokens"]
            assert after["usage"]["prompt_tokens"] > history
            assert after["usage"]["prompt_tokens_details"]["cached_tokens"] in (history, history - 1)
    left = deployed.head.http.get("/v1/sessions").json()["data"]
    assert not [one for one in left if one["id"].startswith("whole/")]


def test_a_batch_run_again_tells_what_is_done_and_makes_only_the_rest(deployed: Deployed) -> None:
    """T2: turns committed before are replayed; conversations already in the output are not asked for at all."""
    good = {"id": "good", "turns": ["one"]}
    broken = {"id": "broken", "turns": ["one", "two", 3, "four"]}
    done = driver(deployed.head, "batch.py", *batch_options(deployed, "again", [good, broken]))
    assert done.returncode == 1, done.stdout
    first = answers(deployed, "again")
    assert first["good"]["error"] is None
    assert first["broken"]["error"].startswith("400: ")
    mended = {**broken, "turns": ["one", "two", "three", "four"]}
    with (deployed.folder / "again.out.jsonl").open("a", encoding="utf-8") as output:
        output.write('{"id": "good", "answ')  # As a crash leaves it.
    done = driver(deployed.head, "batch.py", *batch_options(deployed, "again", [good, mended]))
    assert done.returncode == 0, done.stdout
    assert "1 conversations run, 1 done before, 0 failed" in done.stdout
    second = answers(deployed, "again")
    assert second["good"] == first["good"]
    got = second["broken"]["answers"]
    assert [one["replayed"] for one in got] == [True, True, False, False]
    assert [one["text"] for one in got[:2]] == [one["text"] for one in first["broken"]["answers"]]


def test_a_batch_outlives_the_death_of_the_worker_that_runs_it(deployed: Deployed) -> None:
    """T4: killed in the middle, every conversation still gets all its answers, each turn once."""
    many = [{"id": f"c{number}", "turns": [f"turn {turn}" for turn in range(6)]} for number in range(8)]
    options = batch_options(deployed, "killed", many)
    (row,) = deployed.head.workers("")
    with subprocess.Popen(
        [sys.executable, "deploy/batch.py", *map(str, options)],
        cwd=ROOT,
        env=deployed.head.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as batch:
        wait_until(lambda: turns_stored(deployed.head) >= 4, within_s=60)
        os.kill(row["process"]["pid"], signal.SIGKILL)
        output, _ = batch.communicate(timeout=COMMAND_S)
    assert batch.returncode == 0, output
    found = answers(deployed, "killed")
    assert {name: len(one["answers"]) for name, one in found.items()} == {one["id"]: 6 for one in many}
    for one in found.values():  # A turn run twice would have grown its successor's prompt.
        totals = [answer["usage"] for answer in one["answers"]]
        for before, after in pairwise(totals):
            assert 0 < after["prompt_tokens"] - before["total_tokens"] < 40


def turns_stored(head: Head) -> int:
    """Turns of the batch's sessions that are open."""
    rows = head.http.get("/v1/sessions").json()["data"]
    return sum(row["turns"] for row in rows if row["id"].startswith("killed/"))
