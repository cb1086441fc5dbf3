"""Which sessions leave a hot worker, and that they do not go to and fro (rule P3)."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cluster.placement import SessionKey
from cluster.rebalance import Heat, Move, rebalance
from configs import RebalanceConfig

SETTINGS = RebalanceConfig(
    enabled=True, hot=1.5, min_requests=8, delay_s=10.0, max_moves=4, pause_s=20.0, settle_s=300.0
)


class Homes:
    """Sessions by worker; `step` looks once and does what was decided."""

    def __init__(self, **counts: int) -> None:
        self.keys: dict[str, list[SessionKey]] = {
            worker: [("t", f"{worker}-{number}") for number in range(count)] for worker, count in counts.items()
        }
        self.heat = Heat()

    def look(self, now: float, settings: RebalanceConfig = SETTINGS, **requests: int) -> list[Move]:
        self.heat, moves = rebalance(
            self.heat, requests, lambda one: len(self.keys[one]), lambda one: iter(self.keys[one]), settings, now
        )
        for move in moves:
            self.keys[move.source].remove(move.key)
            self.keys[move.target].append(move.key)
        return moves


def test_a_worker_must_have_been_hot_for_a_while() -> None:
    homes = Homes(a=20, b=20, c=20)
    assert homes.look(0.0, a=20, b=2, c=2) == []
    assert homes.look(9.9, a=20, b=2, c=2) == []
    moves = homes.look(10.0, a=20, b=2, c=2)
    assert [(move.source, move.target) for move in moves] == [("a", "c"), ("a", "b"), ("a", "c"), ("a", "b")]


def test_a_moment_of_coolness_starts_the_clock_anew() -> None:
    homes = Homes(a=20, b=20)
    homes.look(0.0, a=20, b=2)
    homes.look(5.0, a=8, b=8)
    assert homes.look(10.0, a=20, b=2) == []
    assert homes.look(20.0, a=20, b=2) != []


def test_the_next_go_waits_for_the_effect_of_the_last() -> None:
    homes = Homes(a=40, b=40)
    homes.look(0.0, a=30, b=2)
    assert len(homes.look(10.0, a=30, b=2)) == 4
    assert homes.look(29.0, a=30, b=2) == []
    assert len(homes.look(30.0, a=30, b=2)) == 4


def test_few_requests_are_never_hot() -> None:
    homes = Homes(a=20, b=20)
    homes.look(0.0, a=7, b=0)
    assert homes.look(60.0, a=7, b=0) == []


def test_no_more_move_than_bring_it_to_the_mean() -> None:
    homes = Homes(a=10, b=10)
    many = RebalanceConfig(enabled=True, delay_s=0.0, max_moves=1000)
    assert len(homes.look(0.0, many, a=20, b=0)) == 5


def test_a_session_that_moved_stays_where_it_is() -> None:
    homes = Homes(a=4, b=0)
    eager = RebalanceConfig(enabled=True, delay_s=0.0, pause_s=0.0, max_moves=100, settle_s=300.0)
    first = homes.look(0.0, eager, a=40, b=0)
    assert len(first) == 2
    assert homes.look(1.0, eager, a=0, b=40) == []
    assert homes.look(299.0, eager, a=0, b=40) == []
    assert [move.source for move in homes.look(301.0, eager, a=0, b=40)] == ["b"]


def test_one_worker_alone_has_nobody_to_give_to() -> None:
    homes = Homes(a=4)
    assert homes.look(0.0, RebalanceConfig(enabled=True, delay_s=0.0), a=100) == []
    assert Homes().look(0.0) == []


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 60)), min_size=1, max_size=8),
    st.integers(1, 50),
)
def test_what_moves_comes_off_the_hot_and_fills_nobody_above_the_mean(
    workers: list[tuple[int, int]], max_moves: int
) -> None:
    homes = Homes(**{f"w{at}": sessions for at, (_, sessions) in enumerate(workers)})
    shares = {f"w{at}": requests / max(1, sessions) for at, (requests, sessions) in enumerate(workers)}
    requests = {f"w{at}": count for at, (count, _) in enumerate(workers)}
    settings = RebalanceConfig(enabled=True, delay_s=0.0, max_moves=max_moves)
    moves = homes.look(0.0, settings, **requests)
    mean = sum(requests.values()) / len(requests)
    assert len({move.key for move in moves}) == len(moves)
    assert all(requests[move.source] > settings.hot * mean for move in moves)
    assert all(count <= max_moves for count in Counter(move.source for move in moves).values())
    for target in requests:
        gained = sum(shares[move.source] for move in moves if move.target == target)
        assert not gained or requests[target] + gained <= mean + 1e-6
