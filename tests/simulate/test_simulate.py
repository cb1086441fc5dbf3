"""The simulation itself: the same by seed, nothing lost in it, and Remora's policy better where it should be."""

from __future__ import annotations

import pytest

from tests.simulate.__main__ import SIZES, policies, simulate
from tests.simulate.model import SimWorker, Turn, WorkerModel
from tests.simulate.run import Outcome, Session
from tests.simulate.trace import TraceShape, sessions

TINY = SIZES["tiny"]


@pytest.fixture(scope="module")
def poisson() -> dict[str, Outcome]:
    return {name: simulate(TINY, False, 3, make) for name, make in policies(TINY, 3).items()}


def test_every_turn_runs_or_is_shed(poisson: dict[str, Outcome]) -> None:
    wanted = sum(len(one.thinks) for one in sessions(TraceShape(TINY.sessions, TINY.seconds, False), 3))
    for outcome in poisson.values():
        assert outcome.turns == wanted
        assert len(outcome.queue_s) + outcome.shed == outcome.turns


def test_the_same_seed_gives_the_same_outcome(poisson: dict[str, Outcome]) -> None:
    assert simulate(TINY, False, 3, policies(TINY, 3)["remora"]) == poisson["remora"]


def test_stickiness_saves_prefill_and_moves_little(poisson: dict[str, Outcome]) -> None:
    """P1, P3: turns find their KV; a hash ring moves sessions with every change, no affinity with every turn."""
    remora, ring, none = poisson["remora"], poisson["hash affinity"], poisson["no affinity"]
    assert remora.cached_share > 0.85 > none.cached_share
    assert remora.moves < ring.moves < none.moves


def test_a_worker_never_holds_more_than_its_cache_and_batch() -> None:
    model = WorkerModel(batch=2, waiting=1, kv_tokens=100)
    worker = SimWorker("w", model, 0.0)
    (trace,) = sessions(TraceShape(1, 1.0, False), 1)
    turns = [Turn(Session(trace), 30, 10, 0.0) for _ in range(4)]
    for number, turn in enumerate(turns):
        turn.session.number = number
        assert worker.accept(turn) == (number < 3) or number
        started = worker.start_next(0.0)
        assert (started is not None) == (number < 2)
    worker.finish(turns[0])
    assert (worker.idle_tokens, worker.live_tokens) == (40, 40)
    assert worker.start_next(1.0) is not None
    assert worker.live_tokens + worker.idle_tokens <= model.kv_tokens
    assert worker.idle == {}
