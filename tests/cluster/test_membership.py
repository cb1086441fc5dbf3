"""WorkerState: the table of moves, and the clocks."""

from __future__ import annotations

import itertools

import pytest

from cluster.membership import TRANSITIONS, IllegalMove, Membership, Worker, WorkerState
from configs import ClusterConfig

CONFIG = ClusterConfig(suspect_s=5.0, dead_s=30.0, start_timeout_s=300.0)


def ready_since(now: float) -> Membership:
    members = Membership(CONFIG, now)
    members.add("w", now)
    members.heard("w", {}, now)
    return members


def state_of(members: Membership) -> WorkerState:
    worker = members.get("w")
    assert worker is not None
    return worker.state


def look_every_second(members: Membership, start: int, end: int) -> list[str]:
    """Ids of those that were found dead."""
    return [worker.worker_id for now in range(start, end + 1) for worker in members.look(float(now))]


@pytest.mark.parametrize(("old", "new"), list(itertools.product(WorkerState, WorkerState)))
def test_every_move_is_in_the_table_or_raises_with_the_story(old: WorkerState, new: WorkerState) -> None:
    worker = Worker("w", old, 0.0, 0.0, story=["what happened before"])
    if new in TRANSITIONS[old]:
        worker.move(new, "because", 7.0)
        assert (worker.state, worker.since, worker.cause) == (new, 7.0, "because")
    else:
        with pytest.raises(IllegalMove, match="what happened before"):
            worker.move(new, "because", 7.0)
        assert worker.state is old


def test_a_worker_is_ready_from_its_first_answer() -> None:
    members = Membership(CONFIG, 0.0)
    members.add("w", 0.0)
    assert members.ready() == []
    assert members.heard("w", {"running": 2, "waiting": 3}, 1.0) is True
    assert members.heard("w", {"running": 2, "waiting": 3}, 2.0) is False
    assert [worker.load for worker in members.ready()] == [5]


def test_silence_makes_suspect_then_dead() -> None:
    members = ready_since(0.0)
    assert look_every_second(members, 1, 5) == []
    assert state_of(members) is WorkerState.READY
    assert look_every_second(members, 6, 30) == []
    assert state_of(members) is WorkerState.SUSPECT
    assert look_every_second(members, 31, 40) == ["w"]
    assert not members.alive("w")


def test_an_answer_makes_a_suspect_ready_again() -> None:
    members = ready_since(0.0)
    look_every_second(members, 1, 10)
    assert members.heard("w", {}, 10.0) is True
    look_every_second(members, 11, 15)
    assert state_of(members) is WorkerState.READY


def test_the_dead_stay_dead() -> None:
    """T3: a worker that was only frozen and comes back owns nothing any more."""
    members = ready_since(0.0)
    assert members.died("w", "killed", 1.0) is True
    assert members.died("w", "again", 2.0) is False
    assert members.heard("w", {}, 3.0) is False
    assert state_of(members) is WorkerState.DEAD
    with pytest.raises(IllegalMove):
        members.add("w", 4.0)


def test_a_worker_that_does_not_start_in_time_is_dead() -> None:
    members = Membership(CONFIG, 0.0)
    members.add("w", 0.0)
    assert look_every_second(members, 1, 300) == []
    assert look_every_second(members, 301, 302) == ["w"]


def test_a_draining_worker_that_falls_silent_is_dead_not_suspect() -> None:
    members = ready_since(0.0)
    members.drain("w", 1.0)
    look_every_second(members, 1, 30)
    assert state_of(members) is WorkerState.DRAINING
    assert look_every_second(members, 31, 31) == ["w"]


def test_time_in_which_the_pool_stood_still_counts_against_no_worker() -> None:
    members = ready_since(0.0)
    look_every_second(members, 1, 2)
    assert members.look(3600.0) == []
    assert state_of(members) is WorkerState.READY
    look_every_second(members, 3601, 3604)
    assert state_of(members) is WorkerState.SUSPECT


def test_only_the_dead_can_be_forgotten() -> None:
    members = ready_since(0.0)
    with pytest.raises(IllegalMove):
        members.forget("w")
    members = ready_since(0.0)
    members.died("w", "killed", 1.0)
    members.forget("w")
    members.forget("never-was")
    assert members.all() == []
