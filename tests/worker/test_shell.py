"""The worker without its actor: loop thread, overlap, aborts during steps, failures, shutdown."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.engine.plan import StepPlan
from actors.messages import (
    Abort,
    AbortReport,
    Event,
    Finished,
    GetSession,
    Outcome,
    Reason,
    SamplingParams,
    SessionInfo,
    SessionMode,
    Submit,
    Tokens,
    TurnOf,
)
from actors.runner.toy import ToyHandle, ToyRunner, toy_continuation
from actors.worker.shell import WorkerShell, WorkerStopped
from cluster.store.sqlite import SqliteStore
from configs import ClusterConfig, EngineConfig, RemoraConfig

PROMPT = tuple(range(1, 40))


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def config(request: pytest.FixtureRequest) -> RemoraConfig:
    return RemoraConfig(
        engine=EngineConfig(max_step_tokens=16, depth=request.param, check_invariants=True),
        cluster=ClusterConfig(ingress_lease_s=1.0),
    )


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(str(tmp_path / "sessions.sqlite"))


@pytest.fixture
def shell(config: RemoraConfig, store: SqliteStore) -> Iterator[WorkerShell]:
    shell = WorkerShell("w1", config, ToyRunner(step_s=0.002), store)
    shell.start()
    yield shell
    shell.stop()
    assert shell.loop_error is None


def submit(key: str, max_tokens: int = 20, turn: TurnOf | None = None) -> Submit:
    return Submit(
        key=key,
        rid=key,
        ingress="i",
        tenant="default",
        input_ids=PROMPT,
        sampling=SamplingParams(max_tokens=max_tokens),
        turn=turn,
    )


async def hear(shell: WorkerShell, keys: set[str]) -> dict[str, list[Event]]:
    heard: dict[str, list[Event]] = {key: [] for key in keys}
    open_keys = set(keys)
    while open_keys:
        for event in await shell.poll("i"):
            assert not isinstance(event, type(None))
            key = event.key  # type: ignore[union-attr]
            heard[key].append(event)
            if isinstance(event, Finished):
                open_keys.discard(key)
    return heard


def ids_of(events: list[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Tokens) for token in event.ids]


def test_many_requests_through_the_loop_equal_their_reference(shell: WorkerShell) -> None:
    """I3, E1."""
    keys = {f"r{n}" for n in range(12)}
    for key in keys:
        shell.submit(submit(key))
    heard = asyncio.run(hear(shell, keys))
    for events in heard.values():
        assert ids_of(events) == toy_continuation(list(PROMPT), 20)
        assert events[-1].outcome is Outcome.LENGTH


def test_abort_is_handled_before_the_next_plan(shell: WorkerShell) -> None:
    """A3, A4, A6: acknowledged with the stage; pages are back at once."""

    async def aborted(name: str) -> bool:
        shell.submit(submit(name, max_tokens=5000))
        while not any(isinstance(event, Tokens) for event in await shell.poll("i")):
            pass
        report = await asyncio.wrap_future(shell.ask(Abort(tenant="default", rids=(name,))))
        assert isinstance(report, AbortReport)
        if report.already_ended:
            return False  # This process stood still for as long as 5,000 steps of the toy take.
        assert [hit.stage.value for hit in report.hit] == ["decode"]
        heard = await hear(shell, {name})
        assert heard[name][-1].reason is Reason.CLIENT_ABORT
        return True

    async def scenario() -> None:
        assert any([await aborted(f"long-{attempt}") for attempt in range(3)])

    asyncio.run(scenario())
    deadline = time.monotonic() + 5
    while shell.stats()["pages"]["request_owned"]:  # type: ignore[index]
        assert time.monotonic() < deadline


def test_session_turns_survive_the_worker(config: RemoraConfig, store: SqliteStore) -> None:
    """T1, T4: what was told as done is in the store; another worker goes on from there."""
    record = store.create(
        "default",
        "s",
        owner="w1",
        mode=SessionMode.STREAMING,
        idle_timeout_s=None,
        capacity_tokens=None,
        now=0.0,
    )
    history: list[int] = []
    for number, worker in enumerate(("w1", "w2"), 1):
        if number > 1:
            record = store.acquire("default", "s", owner=worker, expected_epoch=record.epoch)
        shell = WorkerShell(worker, config, ToyRunner(), store)
        shell.start()
        turn = TurnOf(session_id="s", generation=record.generation, epoch=record.epoch)
        shell.submit(submit(f"t{number}", turn=turn))
        events = asyncio.run(hear(shell, {f"t{number}"}))[f"t{number}"]
        history += PROMPT
        assert ids_of(events) == toy_continuation(history, 20)
        history += ids_of(events)
        assert events[-1].turn == number
        info = shell.ask(GetSession(tenant="default", session_id="s")).result(60)
        assert isinstance(info, SessionInfo)
        assert (info.turns, info.tokens) == (number, len(history))
        shell.stop()


def test_silent_ingress_loses_its_requests(shell: WorkerShell) -> None:
    """A1: the lease."""
    shell.submit(submit("r", max_tokens=100_000 // 20))
    deadline = time.monotonic() + 10
    while {end["reason"] for end in shell.stats()["ends"]} != {"client_disconnect"}:  # type: ignore[attr-defined]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_stop_answers_everything(config: RemoraConfig, store: SqliteStore) -> None:
    """E2: shutdown: requests end, later ones and asks are refused; nobody waits for ever."""
    shell = WorkerShell("w1", config, ToyRunner(step_s=0.01), store)
    shell.start()
    shell.submit(submit("r", max_tokens=5000))

    async def scenario() -> None:
        await shell.poll("i")
        await asyncio.get_running_loop().run_in_executor(None, shell.stop)
        heard = await hear(shell, {"r"})
        assert heard["r"][-1].reason is Reason.SHUTDOWN

    asyncio.run(scenario())
    assert not shell.alive
    with pytest.raises(WorkerStopped):
        shell.submit(submit("late"))
    with pytest.raises(WorkerStopped):
        shell.ask(GetSession(tenant="default", session_id="s")).result(60)


class BreakingRunner(ToyRunner):
    """A toy whose third step raises, at launch or while it is awaited."""

    where = "launch"

    def launch(self, plan: StepPlan) -> ToyHandle:
        handle = super().launch(plan)
        if plan.number == 3:
            if self.where == "launch":
                raise RuntimeError("device lost")
            handle.wait = self._raise  # type: ignore[method-assign]
        return handle

    def _raise(self) -> None:
        raise RuntimeError("device lost")


class WaitBreakingRunner(BreakingRunner):
    where = "wait"

    def launch(self, plan: StepPlan) -> ToyHandle:
        handle = ToyRunner.launch(self, plan)
        return _Broken(handle) if plan.number == 3 else handle  # type: ignore[return-value]


class _Broken:
    def __init__(self, handle: ToyHandle) -> None:
        self._handle = handle

    def wait(self) -> None:
        raise RuntimeError("device lost")


@pytest.mark.parametrize("runner", [BreakingRunner, WaitBreakingRunner])
def test_step_that_raises_ends_its_requests_and_the_loop_lives_on(
    config: RemoraConfig, store: SqliteStore, runner: type[ToyRunner]
) -> None:
    """E1, I1."""
    shell = WorkerShell("w1", config, runner(), store)
    shell.start()
    shell.submit(submit("r"))
    events = asyncio.run(hear(shell, {"r"}))["r"]
    assert events[-1].reason is Reason.INTERNAL
    shell.submit(submit("next"))
    events = asyncio.run(hear(shell, {"next"}))["next"]
    assert ids_of(events) == toy_continuation(list(PROMPT), 20)
    shell.stop()


def test_idle_loop_sleeps(shell: WorkerShell) -> None:
    """An idle worker takes no CPU: its loop blocks on the mailbox."""
    thread = next(t for t in threading.enumerate() if t.name == "remora-loop-w1")
    assert thread.is_alive()
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1
