"""From heartbeats to what the autoscaler decides by."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.autoscale import WorkerLoad
from cluster.membership import Worker, WorkerState
from cluster.placement import EXPECTED_TOKENS
from cluster.scaling import Scaler, load_of
from configs import AutoscaleConfig

CONFIG = AutoscaleConfig(enabled=True, min_workers=1, max_workers=8, requests_per_worker=10, up_delay_s=5.0)


def worker(name: str, state: WorkerState = WorkerState.READY, at: float = 0.0, **stats: Any) -> Worker:
    pages = {"session_held": stats.pop("held", 0), "request_owned": stats.pop("owned", 0)}
    figures = {"pages": pages, "page_size": 16, "kv_tokens": 16_000, "running": 0, "waiting": 0, **stats}
    return Worker(name, state, at, at, stats={} if state is WorkerState.STARTING else figures)


def test_a_heartbeat_says_what_is_left_of_the_kv() -> None:
    load = load_of(
        worker("w", held=100, owned=200, running=3, waiting=2, rates={"output_tokens_per_s": 9.5}, oldest_wait_s=1.5)
    )
    idle, used = 1600, 3200 + 2 * EXPECTED_TOKENS
    assert load == WorkerLoad("w", True, 16_000, 16_000 - idle - used, idle, 3, 2, 1.5, 9.5)


def test_what_a_worker_predicts_counts_if_it_is_more_than_it_uses() -> None:
    assert load_of(worker("w", owned=100, predicted_kv_tokens=9_000)).headroom_tokens == 7_000
    assert load_of(worker("w", owned=100, predicted_kv_tokens=100)).headroom_tokens == 14_400


def test_a_starting_worker_has_no_figures() -> None:
    assert load_of(worker("w", WorkerState.STARTING)) == WorkerLoad("w", ready=False)


def test_the_scaler_goes_by_heartbeats() -> None:
    scaler = Scaler(CONFIG, 64, 1)
    for at in range(6):
        desired = scaler.look([worker("w", at=float(at), running=25)], 0, float(at))
    assert desired == scaler.desired == 3
    assert "25 requests at 10 per worker ask for 3" in scaler.last.reason


def test_draining_and_dead_workers_carry_no_load() -> None:
    scaler = Scaler(CONFIG, 64, 1)
    gone = [worker("d", WorkerState.DRAINING, running=90), worker("x", WorkerState.DEAD, running=90)]
    for at in range(20):
        assert scaler.look([worker("w", running=2), *gone], 0, float(at)) == 1


@pytest.mark.parametrize(("asked", "desired"), [(0, 1), (5, 5), (50, 8)])
def test_a_number_from_outside_is_gone_on_from_within_the_bounds(asked: int, desired: int) -> None:
    scaler = Scaler(CONFIG, 64, 2)
    scaler.set(asked)
    assert scaler.look([worker("w")], 0, 0.0) == desired


def test_a_queue_that_is_old_is_noticed() -> None:
    scaler = Scaler(CONFIG, 64, 1)
    reasons = {}
    for at in range(12):
        seen = worker("w", at=float(at), running=4, waiting=3, oldest_wait_s=float(at))
        reasons.setdefault(scaler.look([seen], 0, float(at)), scaler.last.reason)
    assert list(reasons) == [1, 2]
    assert "3 requests queue" in reasons[2]
