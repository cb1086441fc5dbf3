"""Where a new session goes, and what the directory remembers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.messages import SessionMode
from actors.records import SessionRecord
from cluster.membership import Worker, WorkerState
from cluster.placement import EXPECTED_TOKENS, IDLE_WEIGHT, Directory, choose, ending_cost, headroom


def worker(worker_id: str, *, held: int = 0, requests: int = 0, load: int = 0, sessions: int = 0) -> Worker:
    stats = {
        "pages": {"session_held": held, "request_owned": requests},
        "page_size": 16,
        "kv_tokens": 65536,
        "running": load,
        "waiting": 0,
        "sessions": sessions,
        "max_running": 32,
    }
    return Worker(worker_id, WorkerState.READY, 0.0, 0.0, stats=stats)


def record(session_id: str, owner: str, epoch: int = 1, generation: int = 1) -> SessionRecord:
    return SessionRecord(
        tenant="t",
        session_id=session_id,
        generation=generation,
        epoch=epoch,
        owner=owner,
        mode=SessionMode.TREE,
        idle_timeout_s=None,
        capacity_tokens=None,
        turns=0,
        tokens=0,
        last_active_at=0.0,
    )


def chosen(workers: list[Worker], directory: Directory | None = None, max_sessions: int = 1000) -> str | None:
    directory = Directory() if directory is None else directory
    untold = directory.untold
    return choose(workers, directory.count, max_sessions, coming=untold.coming, gone=untold.gone)


def test_most_predicted_kv_and_the_shortest_queue_win() -> None:
    """P2: most headroom (predicted KV, queue)."""
    assert chosen([worker("w1", requests=1000), worker("w2", requests=10)]) == "w2"
    assert chosen([worker("w1", load=2), worker("w2", load=1)]) == "w2"


def test_an_empty_cache_does_not_draw_every_new_session() -> None:
    """P2: KV of idle sessions can be had back. A worker that has just started, with nothing held and many requests,
    must not be chosen before old ones that are idle and whose caches are full of idle sessions."""
    fresh, old = worker("w1", held=0, load=20), worker("w2", held=4096, load=4)
    assert chosen([fresh, old]) == "w2"
    assert chosen([worker("w1", held=4000), worker("w2", held=10)]) == "w2"


def test_equals_are_chosen_by_name() -> None:
    """P2: deterministic among equals."""
    workers = [worker("w3"), worker("w1"), worker("w2")]
    assert chosen(workers) == "w1"


def test_sessions_placed_one_after_the_other_spread_evenly_before_any_heartbeat() -> None:
    directory, workers = Directory(), [worker("w1"), worker("w2"), worker("w3")]
    for number in range(9):
        found = chosen(workers, directory)
        assert found is not None
        directory.give(record(f"s{number}", found, generation=number + 1))
    assert [directory.count(one.worker_id) for one in workers] == [3, 3, 3]


def test_headroom_counts_what_is_held_and_what_will_be() -> None:
    some = worker("w", held=100, requests=50, load=4, sessions=2)
    coming = 3
    kv = (50 * 16 + coming * EXPECTED_TOKENS + IDLE_WEIGHT * 100 * 16) / 65536
    assert headroom(some, coming) == pytest.approx(2 - (4 + coming) / 32 - kv)
    assert headroom(worker("w", sessions=9)) == 2.0


def test_headroom_goes_by_what_the_worker_predicts() -> None:
    some = worker("w", requests=50)
    some.stats = {**some.stats, "predicted_kv_tokens": 6553.6}
    assert headroom(some) == pytest.approx(1.9)


def test_full_workers_are_passed_over() -> None:
    """S10: sessions per worker."""
    directory = Directory()
    directory.put(record("a", "w1"))
    assert chosen([worker("w1"), worker("w2", held=1000)], directory, 1) == "w2"
    directory.put(record("b", "w2", generation=2))
    assert chosen([worker("w1"), worker("w2")], directory, 1) is None
    assert chosen([], directory, 1) is None


def test_an_older_seat_never_replaces_a_newer_one() -> None:
    """T3: epochs grow; S9: generations tell two sessions of one id apart."""
    directory = Directory()
    directory.put(record("a", "w2", epoch=3, generation=2))
    directory.put(record("a", "w1", epoch=2, generation=2))
    directory.put(record("a", "w1", epoch=9, generation=1))
    seat = directory.get(("t", "a"))
    assert seat is not None
    assert (seat.worker_id, seat.epoch, seat.generation) == ("w2", 3, 2)
    directory.remove(("t", "a"), generation=1)
    assert len(directory) == 1
    directory.remove(("t", "a"), generation=2)
    assert (len(directory), directory.count("w2")) == (0, 0)


def test_removing_a_worker_moves_only_its_own() -> None:
    """P1: removing a worker moves only its own sessions."""
    directory = Directory()
    for number in range(6):
        directory.put(record(f"s{number}", f"w{number % 2}", generation=number + 1))
    assert directory.remove_worker("w0") == {("t", "s0"), ("t", "s2"), ("t", "s4")}
    assert directory.remove_worker("w0") == set()
    assert (len(directory), directory.count("w1")) == (3, 3)


def test_the_store_corrects_the_directory() -> None:
    directory = Directory()
    directory.put(record("gone", "w1"))
    directory.replace("w1", [record("new", "w1", generation=2)])
    assert directory.get(("t", "gone")) is None
    assert directory.count("w1") == 1


def test_the_worker_with_live_turns_costs_most_then_the_one_with_sessions() -> None:
    """P6: live turns, then sessions, then resident KV."""
    directory = Directory()
    directory.put(record("a", "w2"))
    workers = [worker("w1", load=1), worker("w2"), worker("w3", held=5), worker("w4")]
    ordered = sorted(workers, key=lambda one: ending_cost(one, directory))
    assert [one.worker_id for one in ordered] == ["w4", "w3", "w2", "w1"]


def test_a_workers_last_sessions_come_first_and_names_are_kept_once() -> None:
    directory = Directory()
    for number in range(4):
        directory.put(record(f"s{number}", "".join(["w", "1"]), generation=number + 1))
    assert [key[1] for key in directory.keys("w1")] == ["s3", "s2", "s1", "s0"]
    assert list(directory.keys("w2")) == []
    seats = [directory.get(("t", f"s{number}")) for number in range(4)]
    assert len({id(seat.worker_id) for seat in seats if seat is not None}) == 1


moves = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(1, 5)), max_size=40)


@given(moves, st.sampled_from("xyz"))
def test_the_directory_counts_what_it_holds_whatever_happened(moves: list[tuple[str, str, int]], lost: str) -> None:
    directory = Directory()
    for session_id, owner, epoch in moves:
        directory.put(record(session_id, owner, epoch))
    directory.remove_worker(lost)
    seats = [seat for name in "abc" if (seat := directory.get(("t", name))) is not None]
    assert len(directory) == len(seats)
    assert all(seat.worker_id != lost for seat in seats)
    for owner in "xyz":
        assert directory.count(owner) == sum(seat.worker_id == owner for seat in seats)
