"""A worker that answers its pool while a step of its never returns: when that counts, and what becomes of its work."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.engine.plan import StepPlan, StepResult
from actors.runner.toy import ToyHandle, ToyRunner
from cluster.membership import SLOWER_THAN_EVER, Membership, WorkerState
from configs import ClusterConfig, RemoraConfig
from tests.cluster.test_pool import World, run, submit_of

CONFIG = ClusterConfig(suspect_s=5.0, dead_s=30.0, stuck_s=60.0, start_timeout_s=300.0)


class Watched:
    """One worker that answers every second, by a clock of its own."""

    def __init__(self, config: ClusterConfig = CONFIG) -> None:
        self.members = Membership(config, 0.0)
        self.members.add("w", 0.0)
        self.now = 0.0
        self.slowest_s = 0.0
        self.steps = 1
        self.hear(0)

    def hear(self, turn: int) -> None:
        loop = {"turn": turn, "turn_s": 0.0, "slowest_turn_s": self.slowest_s, "steps_returned": self.steps}
        self.members.heard("w", {"loop": loop}, self.now)

    def second(self, turn: int, *, answers: bool = True) -> list[str]:
        """Those that are found dead in this second."""
        self.now += 1.0
        if answers:
            self.hear(turn)
        return [worker.worker_id for worker in self.members.look(self.now)]

    def seconds(self, count: int, turn: int) -> list[str]:
        return [dead for _ in range(count) for dead in self.second(turn)]

    @property
    def state(self) -> WorkerState:
        worker = self.members.get("w")
        assert worker is not None
        return worker.state

    @property
    def cause(self) -> str:
        worker = self.members.get("w")
        assert worker is not None
        return worker.cause


def test_a_step_that_never_returns_makes_suspect_then_dead() -> None:
    """T4, field case N50: within the window, by what its heartbeats say; it answers every one of them."""
    at = Watched()
    assert at.seconds(31, turn=7) == []
    assert at.state is WorkerState.READY
    assert at.seconds(1, turn=7) == []
    assert at.state is WorkerState.SUSPECT
    assert at.seconds(29, turn=7) == []
    assert at.seconds(1, turn=7) == ["w"]
    assert at.cause.startswith("stuck: a step has not returned for 61")


def test_a_worker_that_comes_around_is_never_stuck() -> None:
    """However long it is busy: each heartbeat tells of another turn, or of none."""
    at = Watched()
    for turn in range(1, 200):
        assert at.second(turn) == []
        assert at.state is WorkerState.READY
    assert at.seconds(200, turn=0) == []
    assert at.state is WorkerState.READY


def test_a_suspect_whose_step_returns_is_ready_again() -> None:
    at = Watched()
    at.seconds(50, turn=7)
    assert at.state is WorkerState.SUSPECT
    at.second(turn=8)
    assert at.state is WorkerState.READY
    assert at.seconds(31, turn=9) == []
    assert at.state is WorkerState.READY, "the next turn is counted from its own beginning"


def test_the_first_step_may_take_as_long_as_a_start() -> None:
    """It may have to compile: a kernel, a graph, whatever the model's load did not need."""
    at = Watched()
    at.steps = 0
    assert at.seconds(300, turn=1) == []
    assert at.seconds(2, turn=1) == ["w"]


def test_a_worker_of_slow_steps_is_measured_by_these() -> None:
    """A prefill chunk of 100 s is no reason, where there was one before."""
    at = Watched()
    at.slowest_s = 100.0
    assert at.seconds(int(SLOWER_THAN_EVER * at.slowest_s) + 1, turn=3) == []
    assert at.seconds(1, turn=3) == ["w"]


def test_time_in_which_it_did_not_answer_is_for_another_clock() -> None:
    """A process that was stopped as a whole, or a machine that slept, has lost time, not its way: the step goes on when
    it wakes."""
    at = Watched(replace(CONFIG, dead_s=1000.0))
    at.seconds(20, turn=7)
    for _ in range(100):
        assert at.second(7, answers=False) == []
    assert at.state is WorkerState.SUSPECT
    assert at.second(7) == []
    assert at.state is WorkerState.READY


def test_off_means_off() -> None:
    """C2."""
    at = Watched(replace(CONFIG, stuck_s=0.0))
    assert at.seconds(2000, turn=7) == []
    assert at.state is WorkerState.READY


def test_a_worker_of_an_earlier_version_says_nothing_of_its_loop() -> None:
    at = Watched()
    for _ in range(200):
        at.now += 1.0
        at.members.heard("w", {}, at.now)
        assert at.members.look(at.now) == []


class StuckHandle(ToyHandle):
    """A step that returns when it is `released`, if ever."""

    def __init__(self, handle: ToyHandle, released: threading.Event) -> None:
        self._inner = handle
        self._released = released

    def wait(self) -> StepResult:
        self._released.wait()
        return self._inner.wait()


class StuckRunner(ToyRunner):
    """Steps return unless it is `stuck`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stuck = False
        self.released = threading.Event()

    def launch(self, plan: StepPlan) -> ToyHandle:
        handle = super().launch(plan)
        return StuckHandle(handle, self.released) if self.stuck else handle

    def release(self) -> None:
        self.released.set()


WINDOW_S = 0.4


def with_window(config: RemoraConfig) -> RemoraConfig:
    return replace(config, cluster=replace(config.cluster, stuck_s=WINDOW_S, start_timeout_s=WINDOW_S))


def test_a_stuck_worker_is_replaced_and_its_sessions_go_on_elsewhere(tmp_path: Path) -> None:
    """T3, T4, field case N50: it answers heartbeats all the time; new sessions avoid it, then it is given up; whoever
    had a turn there has the whole history elsewhere, under the next epoch, and its late commit is refused."""

    async def check(at: World) -> None:
        await at.until_ready(2)
        placed = await at.open("s")
        assert (await at.turn(placed, "r1")).completion_tokens == 4
        stuck = at.runtime.workers[placed.worker_id]
        assert isinstance(stuck.shell.runner, StuckRunner)
        stuck.shell.runner.stuck = True
        stuck.shell.submit(submit_of(placed, "r2", 4))
        began_at, answered = asyncio.get_running_loop().time(), stuck.heartbeats

        async def suspected() -> bool:
            return (await at.states()).get(placed.worker_id) == "suspect"

        await at.until(suspected)
        assert (await at.open("t")).worker_id != placed.worker_id

        async def given_up() -> bool:
            return placed.worker_id not in await at.states()

        await at.until(given_up)
        assert asyncio.get_running_loop().time() - began_at < WINDOW_S + 30.0
        assert stuck.heartbeats > answered + 10
        moved = await at.pool.place("t", "s", avoid=placed.worker_id)
        assert moved.worker_id != placed.worker_id
        assert moved.session.epoch == placed.session.epoch + 1
        assert (await at.turn(moved, "r3")).prompt_tokens == 20 + 4 + 20
        status = await at.pool.status()
        deaths = status["pool"]["deaths"]  # type: ignore[index,call-overload]
        assert "stuck" in deaths[0]["cause"]
        _, turns = at.store.load("t", "s", placed.session.generation)
        assert [turn.rid for turn in turns] == ["r1", "r3"]

    run(check, tmp_path, change=with_window, prepare=lambda runtime: setattr(runtime, "make_runner", StuckRunner))
