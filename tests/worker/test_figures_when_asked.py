"""A worker's figures: taken when somebody asks, between two verbs of its engine, and never at the cost of a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.engine.plan import StepPlan
from actors.messages import Abort, AbortReport, SamplingParams, Submit
from actors.runner.toy import ToyHandle, ToyRunner
from actors.worker.shell import WorkerShell
from cluster.store.sqlite import SqliteStore
from configs import EngineConfig, RemoraConfig


class HeldRunner(ToyRunner):
    """A toy whose steps wait at the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.launched = threading.Event()

    def launch(self, plan: StepPlan) -> ToyHandle:
        handle = super().launch(plan)
        self.launched.set()
        self.gate.wait(30)
        return handle


@pytest.fixture
def runner() -> HeldRunner:
    return HeldRunner()


@pytest.fixture
def shell(runner: HeldRunner, tmp_path: Path) -> Iterator[WorkerShell]:
    config = RemoraConfig(engine=EngineConfig(depth=0))
    shell = WorkerShell("w1", config, runner, SqliteStore(str(tmp_path / "sessions.sqlite")))
    shell.start()
    yield shell
    runner.gate.set()
    shell.stop()
    assert shell.loop_error is None


def submit(key: str, max_tokens: int) -> Submit:
    sampling = SamplingParams(max_tokens=max_tokens)
    return Submit(key=key, rid=key, ingress="i", tenant="default", input_ids=(1, 2, 3), sampling=sampling)


def test_they_are_of_this_moment_while_a_step_computes(shell: WorkerShell, runner: HeldRunner) -> None:
    """P2: who asks neither waits for the step nor hears how it was before."""
    shell.submit(submit("r", 5))
    assert runner.launched.wait(30)
    began = time.monotonic()
    assert (shell.stats()["running"], shell.stats()["requests_received"]) == (1, 1)
    assert time.monotonic() - began < 5.0


def test_who_was_answered_sees_it_in_them(shell: WorkerShell, runner: HeldRunner) -> None:
    """P2: from the moment on at which the answer is heard."""
    runner.gate.set()
    for number in range(30):
        shell.submit(submit(f"r{number}", 300))
        report = shell.ask(Abort(tenant="default", rids=(f"r{number}",))).result(60)
        assert isinstance(report, AbortReport)
        ended = [end["count"] for end in shell.stats()["ends"]]  # type: ignore[attr-defined]
        assert sum(ended) == number + 1


def test_they_are_the_last_ones_while_a_verb_does_not_end(
    shell: WorkerShell, runner: HeldRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4: the pool hears that the loop is stuck, from an actor that answers."""
    runner.gate.set()
    stuck, go_on = threading.Event(), threading.Event()
    plan = shell._loop._engine.plan

    def slow_plan(now: float) -> StepPlan | None:
        stuck.set()
        go_on.wait(30)
        return plan(now)

    monkeypatch.setattr(shell._loop._engine, "plan", slow_plan)
    before = shell.stats()["requests_received"]
    shell.submit(submit("r", 5))
    assert stuck.wait(30)
    try:
        stats = shell.stats()
        assert stats["requests_received"] == before
        assert stats["loop"]["turn"] > 0  # type: ignore[index]
    finally:
        go_on.set()


def test_no_step_takes_them(shell: WorkerShell, runner: HeldRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """P7: they cost a small step as much as two of its requests."""
    taken = []
    snapshot = shell._loop._engine.snapshot
    monkeypatch.setattr(shell._loop._engine, "snapshot", lambda: taken.append(1) or snapshot())
    runner.gate.set()
    shell.submit(submit("r", 50))
    while not shell._loop._engine.core.totals.ends:
        time.sleep(0.01)
    assert taken == []
    assert shell.stats()["steps"] >= 50  # type: ignore[operator]
    assert taken == [1]
