"""Hibernation in /metrics: what every worker says, or that nobody could say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from actors.ingress import service_api, worker_metrics
from actors.ports import NoWorker
from actors.records import StoreError
from actors.runner.toy import ToyRunner
from actors.worker.kv_effects import KVEffects
from configs import HibernateConfig
from tests.ingress.asgi import run
from tests.ingress.harness import edge
from tests.ingress.scripted import says


def row(worker: str, number: int) -> dict[str, object]:
    """Every figure is another number."""
    effects = KVEffects(ToyRunner(), HibernateConfig(), lambda answer: None)
    effects.close()
    names = [*effects.stats(), "woken_turns", "missed_pages"]
    return {"id": worker, "hibernate": {name: number + index for index, name in enumerate(names)}}


def test_every_figure_of_every_worker_is_shown() -> None:
    """K7: visibly in metrics."""
    rows = [row("w1", 100), row("w2", 200), {"id": "dead"}]
    text = worker_metrics.exposition(rows).decode()
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    values = [float(line.rsplit(" ", 1)[1]) for line in samples]
    expected = [float(100 * worker + index) for worker in (1, 2) for index in range(14)]
    assert sorted(values) == [1.0, *expected]
    assert 'remora_hibernated_bytes{where="disk",worker="w2"} 204.0' in samples or (
        'remora_hibernated_bytes{worker="w2",where="disk"} 204.0' in samples
    )
    assert "dead" not in text


def test_time_in_the_queue_is_a_histogram() -> None:
    """Session case M08: its buckets are those of the worker's account."""
    times = {"count": 3, "sum_s": 2.5, "at_most": {"0.1": 1, "1.0": 2, "+Inf": 3}}
    text = worker_metrics.exposition([{"id": "w1", "queue_time": times}]).decode()
    assert 'remora_queue_time_seconds_bucket{le="1.0",worker="w1"} 2.0' in text
    assert 'remora_queue_time_seconds_count{worker="w1"} 3.0' in text
    assert 'remora_queue_time_seconds_sum{worker="w1"} 2.5' in text


def test_a_worker_that_knows_fewer_figures_is_shown_with_those() -> None:
    text = worker_metrics.exposition([{"id": "old", "hibernate": {"images": 3}}]).decode()
    assert 'remora_hibernated_sessions{worker="old"} 3.0' in text


async def _hangs() -> dict[str, object]:
    await asyncio.Event().wait()
    return {}


def _raises(error: Exception) -> Callable[[], Awaitable[dict[str, object]]]:
    async def status() -> dict[str, object]:
        raise error

    return status


@pytest.mark.parametrize(
    "status",
    [_hangs, _raises(NoWorker("none")), _raises(StoreError("the pool cannot be reached"))],
    ids=["silent", "no worker", "gone"],
)
def test_without_the_pool_an_ingress_shows_its_own_figures(
    monkeypatch: pytest.MonkeyPatch, status: Callable[[], Awaitable[dict[str, object]]]
) -> None:
    monkeypatch.setattr(service_api, "WORKERS_ANSWER_S", 0.01)

    async def check() -> None:
        async with edge(says("x")) as at:
            monkeypatch.setattr(at.pool, "status", status)
            answer = await at.client.get("/metrics")
            text = answer.body.decode()
            assert answer.status == 200
            assert "remora_worker_figures_up 0.0" in text
            assert "remora_requests_received_total" in text

    run(check())


def test_with_the_pool_it_shows_the_workers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def status() -> dict[str, object]:
        return {"workers": [row("w1", 100)], "pool": {}}

    async def check() -> None:
        async with edge(says("x")) as at:
            monkeypatch.setattr(at.pool, "status", status)
            text = (await at.client.get("/metrics")).body.decode()
            assert "remora_worker_figures_up 1.0" in text
            assert 'remora_hibernated_sessions{worker="w1"} 100.0' in text
            assert "remora_requests_received_total" in text

    run(check())
