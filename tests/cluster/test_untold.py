"""What the pool has decided since a worker's last heartbeat counts on top of what that tells."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.membership import Worker, WorkerState
from cluster.placement import Directory, choose, headroom, load_now
from cluster.scaling import load_of
from cluster.untold import COMING_S, Untold
from tests.cluster.test_placement import record


class Cluster:
    """Equal workers, a directory, and heartbeats that come when a test says so."""

    def __init__(self, workers: int) -> None:
        self.now = 0.0
        self.directory = Directory()
        self.workers = {
            name: Worker(name, WorkerState.READY, 0.0, 0.0) for name in (f"w{number}" for number in range(workers))
        }
        self.taken: Counter[str] = Counter()
        self.turns: Counter[str] = Counter()
        self.others: Counter[str] = Counter()
        """Requests without a session."""
        self.generation = 0
        for name in self.workers:
            self.beat(name)

    def beat(self, name: str) -> None:
        """The worker has heard of all that was placed there, and of all that was closed."""
        asked, owned = self.directory.untold.asked(name), self.directory.count(name)
        self.workers[name].stats = {
            "pages": {"session_held": 40 * owned, "request_owned": 30 * (self.turns[name] + self.others[name])},
            "page_size": 16,
            "kv_tokens": 65536,
            "max_running": 32,
            "running": self.turns[name] + self.others[name],
            "turns": self.turns[name],
            "sessions": owned,
        }
        self.directory.untold.heard(name, asked, self.taken[name], self.now)

    def choose(self) -> str:
        untold = self.directory.untold
        chosen = choose(self.workers.values(), self.directory.count, 1000, coming=untold.coming, gone=untold.gone)
        assert chosen is not None
        return chosen

    def open(self, at: str | None = None) -> tuple[str, str]:
        """A session, and where it is."""
        self.generation += 1
        owner, name = at or self.choose(), f"s{self.generation}"
        self.directory.give(record(name, owner, generation=self.generation))
        return name, owner

    def use(self, owner: str) -> None:
        """The first turn of a session comes to its owner."""
        self.taken[owner] += 1
        self.turns[owner] += 1

    def close(self, name: str) -> None:
        key = ("t", name)
        seat = self.directory.get(key)
        assert seat is not None
        self.directory.remove(key, seat.generation)

    def spread(self, sessions: int) -> list[int]:
        owners = Counter(self.open()[1] for _ in range(sessions))
        return sorted(owners[name] for name in self.workers)


held = st.lists(st.integers(0, 12), min_size=2, max_size=6)


@given(held, st.integers(1, 40), st.booleans())
def test_sessions_spread_though_heartbeats_still_show_those_that_were_closed(
    before: list[int], sessions: int, busy: bool
) -> None:
    """P2: each worker had some sessions, whose turns run or do not; its heartbeat shows them, and they are closed."""
    cluster = Cluster(len(before))
    opened = [cluster.open(f"w{number}") for number, count in enumerate(before) for _ in range(count)]
    for _, owner in opened:
        cluster.use(owner)
    if not busy:
        cluster.turns.clear()
    for name in cluster.workers:
        cluster.beat(name)
    for name, _ in opened:
        cluster.close(name)
    counts = cluster.spread(sessions)
    assert counts[-1] - counts[0] <= 1


@given(held, st.integers(1, 40))
def test_sessions_spread_though_some_workers_have_told_of_them_and_others_have_not(
    beats: list[int], sessions: int
) -> None:
    """P2: what a heartbeat includes does not count twice, and what it does not is not forgotten."""
    cluster = Cluster(len(beats))
    counts = Counter[str]()
    for _ in range(sessions):
        _, owner = cluster.open()
        counts[owner] += 1
        cluster.use(owner)
        if beats[int(owner[1:])] > 6:
            cluster.beat(owner)
            # A turn is to weigh here what a session is taken to need.
            pages = {"session_held": 0, "request_owned": 64 * cluster.turns[owner]}
            cluster.workers[owner].stats = {**cluster.workers[owner].stats, "pages": pages}
    assert max(counts.values()) - min(counts[name] for name in cluster.workers) <= 1


@given(held, st.integers(1, 40))
def test_sessions_that_expired_by_themselves_hide_nobody(before: list[int], sessions: int) -> None:
    """S8, P2: a worker closes idle sessions itself, and the directory learns of it at the next count: what it has too
    many there is not on its way."""
    cluster = Cluster(len(before))
    for number, count in enumerate(before):
        for _ in range(count):
            cluster.use(cluster.open(f"w{number}")[1])
    cluster.turns.clear()
    for name, worker in cluster.workers.items():
        cluster.beat(name)
        worker.stats = {**worker.stats, "sessions": 0, "pages": {}}
    assert {cluster.directory.untold.coming(name) for name in cluster.workers} == {0}
    counts = cluster.spread(sessions)
    assert counts[-1] - counts[0] <= 1


def test_a_move_counts_at_both_ends_until_both_have_told() -> None:
    """P3, T5: as a close where it was, and as an open where it goes."""
    cluster = Cluster(2)
    cluster.use(cluster.open("w0")[1])
    cluster.beat("w0")
    cluster.directory.give(record("s1", "w1", epoch=2))
    untold = cluster.directory.untold
    assert (untold.gone("w0"), untold.coming("w1")) == (1, 1)
    assert load_now(cluster.workers["w0"], untold.gone("w0")) == 0
    cluster.turns["w0"], cluster.taken["w1"] = 0, 1
    cluster.beat("w0")
    cluster.beat("w1")
    assert (untold.gone("w0"), untold.coming("w1")) == (0, 0)


def test_requests_without_a_session_stay_when_sessions_go() -> None:
    cluster = Cluster(1)
    names = [cluster.open("w0")[0] for _ in range(4)]
    for _ in names:
        cluster.use("w0")
    cluster.others["w0"] = 3
    cluster.beat("w0")
    worker = cluster.workers["w0"]
    left = [
        (load_now(worker, gone), load_of(worker, gone).running, load_of(worker, gone).sessions) for gone in (0, 2, 9)
    ]
    assert left == [(7, 7, 4), (5, 5, 2), (3, 3, 0)]
    assert load_of(worker, 2).idle_kv_tokens == load_of(worker).idle_kv_tokens // 2
    requests = 30 * 7 * 16
    assert headroom(worker, gone=4) == pytest.approx(2 - 3 / 32 - requests * 3 / 7 / 65536)


def test_a_heartbeat_that_was_asked_for_before_a_close_does_not_tell_of_it() -> None:
    untold = Untold()
    untold.heard("w", untold.asked("w"), 3, 0.0)
    asked = untold.asked("w")
    untold.went("w", "a")
    untold.heard("w", asked, 3, 1.0)
    assert untold.gone("w") == 1
    untold.heard("w", untold.asked("w"), 3, 2.0)
    untold.heard("w", asked, 3, 2.1)  # One that came late.
    assert untold.gone("w") == 0


def test_as_many_have_arrived_as_the_worker_has_taken_in_first_come_first() -> None:
    untold = Untold()
    untold.heard("w", untold.asked("w"), 10, 0.0)
    for key in "abcd":
        untold.came("w", key)
    untold.heard("w", untold.asked("w"), 12, 1.0)
    assert untold.coming("w") == 2
    untold.went("w", "c")  # Used and closed, perhaps; its arrival is still to be told.
    assert (untold.coming("w"), untold.gone("w")) == (1, 0)
    untold.heard("w", untold.asked("w"), 13, 2.0)
    assert untold.coming("w") == 1
    untold.heard("w", untold.asked("w"), 14, 3.0)
    assert untold.coming("w") == 0


def test_a_session_that_nobody_uses_is_not_waited_for_for_ever() -> None:
    """T5: idle sessions are moved there without their KV, and may stay idle for hours."""
    untold = Untold()
    untold.came("w", "a")
    untold.heard("w", untold.asked("w"), 0, 1.0)
    untold.came("w", "b")
    untold.heard("w", untold.asked("w"), 0, COMING_S)
    assert untold.coming("w") == 2
    untold.heard("w", untold.asked("w"), 0, 1.0 + COMING_S)
    assert untold.coming("w") == 1
    untold.forget("w")
    assert untold.coming("w") == 0


def test_a_session_that_is_placed_again_where_it_comes_counts_once() -> None:
    untold = Untold()
    untold.came("w", "a")
    untold.came("w", "a")
    assert untold.coming("w") == 1
    untold.went("w", "a")
    untold.came("w", "a")
    assert untold.coming("w") == 1
