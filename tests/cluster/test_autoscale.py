"""How many workers there should be: recorded loads, and what holds for any load."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.autoscale import Decision, Memory, Observation, WorkerLoad, decide
from configs import AutoscaleConfig

TRACES = sorted((Path(__file__).parent / "traces").glob("*.txt"))
MAX_RUNNING = 64
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def spread(total: int, over: int) -> list[int]:
    return [total // over + (at < total % over) for at in range(over)] if over else []


def observation(
    now: float,
    ready: int = 0,
    starting: int = 0,
    running: int = 0,
    waiting: int = 0,
    oldest: float = 0.0,
    rate: float = 0.0,
    parked: int = 0,
    hot: int | None = None,
    kv: int = 100_000,
    used: int = 0,
    idle: int = 0,
) -> Observation:
    """`running`, `waiting`, `rate`, `idle` of all workers together; `used` of each. `hot`: on how many the queue is."""
    queued = spread(waiting, ready if hot is None else hot) + [0] * ready
    workers = [
        WorkerLoad(
            worker_id=f"w{at}",
            ready=True,
            kv_tokens=kv,
            headroom_tokens=kv - used - each_idle,
            idle_kv_tokens=each_idle,
            running=each_running,
            waiting=queued[at],
            oldest_wait_s=oldest if queued[at] else 0.0,
            output_tokens_per_s=rate / ready,
        )
        for at, (each_running, each_idle) in enumerate(zip(spread(running, ready), spread(idle, ready), strict=True))
    ]
    workers += [WorkerLoad(worker_id=f"s{at}", ready=False) for at in range(starting)]
    return Observation(now, tuple(workers), parked)


def recorded(path: Path) -> tuple[AutoscaleConfig, int, list[tuple[Observation, int, str]]]:
    """(settings, workers at the start, looks with the number expected and a part of the reason)"""
    config, desired, looks = AutoscaleConfig(enabled=True), 0, []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        head, *words = line.split("->")[0].split()
        if head == "desired":
            desired = int(words[0])
            continue
        pairs: dict[str, Any] = {name: float(value) for name, _, value in (word.partition("=") for word in words)}
        if head == "settings":
            kinds = AutoscaleConfig.__dataclass_fields__
            values = {name: int(value) if kinds[name].type == "int" else value for name, value in pairs.items()}
            config = AutoscaleConfig(enabled=True, **values)
        else:
            whole = {name: value if name in ("oldest", "rate") else int(value) for name, value in pairs.items()}
            expected, _, why = line.split("->")[1].strip().partition(" ")
            looks.append((observation(float(head), **whole), int(expected), why.strip()))
    return config, desired, looks


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_a_recorded_load_gives_the_expected_numbers(path: Path) -> None:
    config, desired, looks = recorded(path)
    memory = Memory(desired)
    for seen, expected, why in looks:
        memory, decision = decide(memory, seen, config, MAX_RUNNING)
        assert decision.workers == expected, f"at {seen.now:g} s: {decision}"
        assert why in decision.reason, f"at {seen.now:g} s: {decision}"


def test_every_trace_changes_something_or_says_that_nothing_must() -> None:
    """The traces would notice a decision that never moves: all but one contain a change."""
    still = [path.stem for path in TRACES if len({expected for _, expected, _ in recorded(path)[2]}) == 1]
    assert still == ["short_spike"]


def test_a_default_target_follows_from_the_batch() -> None:
    config = AutoscaleConfig(enabled=True, up_delay_s=0.0)
    _, decision = decide(Memory(1), observation(0.0, ready=1, running=100), config, max_running=64)
    assert decision == Decision(3, "for 0 s: 100 requests at 48 per worker ask for 3")


loads = st.fixed_dictionaries(
    {
        "ready": st.integers(0, 6),
        "starting": st.integers(0, 3),
        "running": st.integers(0, 300),
        "waiting": st.integers(0, 300),
        "oldest": st.floats(0, 30),
        "parked": st.integers(0, 50),
        "used": st.integers(0, 120_000),
        "idle": st.integers(0, 100_000),
    }
)
records = st.lists(loads, min_size=1, max_size=25)
configs = st.builds(
    AutoscaleConfig,
    enabled=st.just(True),
    min_workers=st.integers(0, 3),
    max_workers=st.integers(3, 12),
    requests_per_worker=st.integers(1, 40),
    idle_kv_share=st.sampled_from([0.0, 0.5, 1.0]),
    up_delay_s=st.sampled_from([0.0, 2.0, 5.0]),
    down_delay_s=st.sampled_from([0.0, 5.0, 20.0]),
    idle_s=st.sampled_from([10.0, 100.0]),
)


def replay(record: list[dict[str, Any]], config: AutoscaleConfig, desired: int) -> Iterator[int]:
    memory = Memory(desired)
    for at, load in enumerate(record):
        memory, decision = decide(memory, observation(float(at), **load), config, MAX_RUNNING)
        assert decision.reason
        yield decision.workers


@given(records, configs, st.integers(0, 12))
@PATIENT
def test_the_bounds_hold_whatever_the_load(record: list[dict[str, Any]], config: AutoscaleConfig, start: int) -> None:
    for workers in replay(record, config, start):
        assert config.min_workers <= workers <= config.max_workers


@given(records, configs, st.integers(0, 12), st.data())
@PATIENT
def test_more_load_never_means_fewer_workers(
    record: list[dict[str, Any]], config: AutoscaleConfig, start: int, data: st.DataObject
) -> None:
    """At every look of two records that differ in load alone, the one with more never wants fewer."""
    heavier = [dict(load) for load in record]
    for load in heavier:
        for name, most in (("running", 50), ("waiting", 50), ("parked", 20), ("used", 30_000)):
            load[name] += data.draw(st.integers(0, most))
        load["oldest"] += data.draw(st.floats(0, 5))
    for fewer, more in zip(replay(record, config, start), replay(heavier, config, start), strict=True):
        assert more >= fewer


@given(loads, configs, st.integers(0, 12))
@settings(PATIENT, max_examples=50)
def test_under_the_same_load_the_number_settles_and_stays(
    load: dict[str, Any], config: AutoscaleConfig, start: int
) -> None:
    """No oscillation: it goes one way, and once it has settled it does not move (but for the last step to idle)."""
    numbers = [start, *replay([load] * 150, config, start)]
    steps = [after - before for before, after in pairwise(numbers) if after != before]
    if load["running"] + load["waiting"] + load["parked"] and config.min_workers <= start <= config.max_workers:
        assert all(step > 0 for step in steps) or all(step < 0 for step in steps)
    assert len(set(numbers[-20:])) == 1


@given(
    st.integers(0, 7),
    st.floats(0.15, 0.95),
    st.integers(1, 8),
    st.sampled_from([2.0, 10.0, 30.0]),
    st.sampled_from([1, 4, 16]),
)
@settings(PATIENT, max_examples=30)
def test_a_constant_stream_of_requests_leads_to_a_number_that_stays(
    whole: int, part: float, start: int, start_s: float, batch: int
) -> None:
    """No flapping with feedback: queues grow on too few workers, the number is raised, queues go, and it stays."""
    demand = whole + part  # Not so near to a whole number that a queue would take hours to grow.
    config = AutoscaleConfig(enabled=True, max_workers=16, requests_per_worker=batch * 2)
    numbers = closed_loop(demand, start, start_s, batch, config, seconds=1500)
    settled = set(numbers[-600:])
    assert len(settled) == 1
    assert settled.pop() >= math.ceil(demand - 1e-9), "fewer workers than the load needs"
    changes = [after > before for before, after in pairwise(numbers) if after != before]
    turns = sum(after != before for before, after in pairwise(changes))
    assert turns <= 2, f"the number went up and down: {numbers[::50]}"


def closed_loop(
    demand: float, start: int, start_s: float, batch: int, config: AutoscaleConfig, seconds: int
) -> list[int]:
    """`demand` requests per second of one second of a worker's work each, of which `batch` run side by side; workers
    take `start_s` to start. The desired number each second."""
    memory, ready_at, backlog = Memory(start), [0.0] * start, 0.0
    numbers: list[int] = []
    for now in range(seconds):
        ready = sum(at <= now for at in ready_at)
        done = min(backlog + demand, float(ready))
        backlog += demand - done
        busy = min(ready * batch, math.ceil((done * batch) + backlog))
        waiting = max(0, math.floor(backlog - busy))
        seen = observation(
            float(now),
            ready=ready,
            starting=len(ready_at) - ready,
            running=busy,
            waiting=waiting,
            oldest=waiting / ready if ready else 0.0,
            rate=done * 50,
        )
        memory, decision = decide(memory, seen, config, MAX_RUNNING)
        ready_at = ready_at[: decision.workers] + [now + start_s] * (decision.workers - len(ready_at))
        numbers.append(decision.workers)
    return numbers
