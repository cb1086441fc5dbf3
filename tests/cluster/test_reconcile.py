"""Desired against observed, as a table."""

from __future__ import annotations

import pytest

from cluster.membership import Worker, WorkerState
from cluster.reconcile import MAX_BACKOFF_S, Action, Adopt, Drain, Kill, Spawn, backoff_s, reconcile

STATES = {
    "S": WorkerState.STARTING,
    "R": WorkerState.READY,
    "?": WorkerState.SUSPECT,
    "D": WorkerState.DRAINING,
    "x": WorkerState.DEAD,
}


def actions(desired: int, states: str, living: tuple[str, ...] = (), may_spawn: bool = True) -> list[Action]:
    """`states`: one letter per worker `w0`, `w1`, …; the cost of a worker is its running requests: 9 − its number."""
    workers = [
        Worker(f"w{number}", STATES[letter], 0.0, 0.0, stats={"running": 9 - number})
        for number, letter in enumerate(states)
    ]
    return reconcile(desired, workers, living, lambda worker: (worker.load,), may_spawn=may_spawn)


@pytest.mark.parametrize(
    ("desired", "states", "expected"),
    [
        (2, "", [Spawn(), Spawn()]),
        (2, "SR", []),
        (2, "R?", []),
        (2, "Rx", [Spawn()]),
        (2, "RD", [Spawn()]),
        (1, "RRR", [Drain("w2"), Drain("w1")]),
        (1, "SRR", [Kill("w0"), Drain("w2")]),
        (1, "?RD", [Drain("w1")]),
        (0, "xD", []),
    ],
)
def test_what_is_becomes_what_should_be(desired: int, states: str, expected: list[Action]) -> None:
    assert actions(desired, states) == expected


def test_unknown_living_workers_are_adopted_and_counted() -> None:
    assert actions(2, "", living=("w8", "w7")) == [Adopt("w7"), Adopt("w8")]
    assert actions(3, "R", living=("w0", "w7")) == [Adopt("w7"), Spawn()]


def test_too_many_living_workers_lead_to_a_drain_only_once_they_are_known() -> None:
    assert actions(1, "R", living=("w0", "w7")) == [Adopt("w7")]
    assert actions(1, "RR", living=("w0", "w1")) == [Drain("w1")]


def test_the_dead_that_still_run_are_killed() -> None:
    """T3: a worker declared dead must not come back."""
    assert actions(1, "xR", living=("w0", "w1")) == [Kill("w0")]


def test_nothing_is_started_while_starting_fails() -> None:
    assert actions(2, "R", may_spawn=False) == []
    assert [backoff_s(failures) for failures in (0, 1, 2, 3, 10)] == [0.0, 1.0, 2.0, 4.0, MAX_BACKOFF_S]
