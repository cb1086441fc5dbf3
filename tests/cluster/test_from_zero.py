"""Requests that come while there is no worker (rules C1, T5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from configs import AutoscaleConfig, ClusterConfig, EngineConfig, TimeoutConfig
from tests.cluster.edge import Whole, whole
from tests.ingress.asgi import Call, run

FROM_ZERO = AutoscaleConfig(enabled=True, min_workers=0, max_workers=3, requests_per_worker=100, idle_s=600.0)
LEAVERS = (3, 4, 17, 30, 49)


def check(test: Callable[[Whole], Awaitable[None]], folder: Path, waiting_s: float = 60.0, **changed: Any) -> None:
    async def main() -> None:
        settings = {
            "autoscale": FROM_ZERO,
            "engine": EngineConfig(max_running=1, check_invariants=True),
            "timeouts": TimeoutConfig(waiting_s=waiting_s),
            **changed,
        }
        async with whole(folder, workers=0, starts=False, **settings) as at:
            await test(at)

    run(main(), 60.0)


def begin(at: Whole, order: list[int], kind: str, count: int = 50) -> list[Call]:
    """So many at once; the numbers of those that were answered are noted in order."""
    calls = []
    for number in range(count):
        session = {"session": {"id": f"s{number}", "create": True}} if kind == "sessions" else {}
        calls.append(at.client.chat(f"{number}", max_tokens=1, **session))
        calls[-1].task.add_done_callback(lambda task, number=number: order.append(number))
    return calls


@pytest.mark.parametrize("kind", ["stateless", "sessions"])
def test_who_waits_for_the_first_worker_is_answered_in_order_of_arrival(tmp_path: Path, kind: str) -> None:
    """N44: fifty come, five leave, one worker is started, once; the others are answered, and in order. (Sessions are
    first opened in the store, several at a time, which may finish in another order.)"""

    async def test(at: Whole) -> None:
        order: list[int] = []
        calls = begin(at, order, kind)
        await at.until(lambda: len(at.w.runtime.spawned) == 1)
        for number in LEAVERS:
            calls[number].disconnect()
        await asyncio.gather(*(calls[number].task for number in LEAVERS))
        assert at.ends() == {("abort", "client_disconnect", "routing"): 5}
        order.clear()
        at.w.runtime.starts.set()
        answered = [call for number, call in enumerate(calls) if number not in LEAVERS]
        await asyncio.gather(*(call.task for call in answered))
        assert {call.status for call in answered} == {200}
        expected = [number for number in range(50) if number not in LEAVERS]
        assert (order if kind == "stateless" else sorted(order)) == expected
        assert len(at.w.runtime.spawned) == 1

    check(test, tmp_path)


def test_who_waited_long_enough_is_told_so_and_the_start_goes_on(tmp_path: Path) -> None:
    """N44, E3: real 503s with Retry-After, when the waiting timeout says; the next caller gets the worker."""

    async def test(at: Whole) -> None:
        began_at = time.monotonic()
        calls = begin(at, [], "stateless")
        await asyncio.gather(*(call.task for call in calls))
        assert time.monotonic() - began_at >= 0.5
        assert {(call.status, call.json()["error"]["reason"]) for call in calls} == {(503, "waiting_timeout")}
        assert all(int(call.headers["retry-after"]) >= 1 for call in calls)
        at.w.runtime.starts.set()
        await at.until_workers(1)
        assert (await at.client.chat("next", max_tokens=1).whole()).status == 200
        assert len(at.w.runtime.spawned) == 1

    check(test, tmp_path, waiting_s=0.5)


@pytest.mark.parametrize("kind", ["stateless", "sessions"])
def test_without_a_waiting_timeout_it_is_as_long_as_a_start_may_take(tmp_path: Path, kind: str) -> None:
    """C1: not a number of its own: `start_timeout_s`, and `dead_s` for finding out that a worker is to be replaced."""
    cluster = ClusterConfig(heartbeat_s=0.02, suspect_s=0.1, dead_s=0.3, start_timeout_s=0.4)

    async def test(at: Whole) -> None:
        assert at.ingress.router.park_s == pytest.approx(0.7)
        began_at = time.monotonic()
        (call,) = begin(at, [], kind, count=1)
        await call.whole()
        assert (call.status, call.json()["error"]["reason"]) == (503, "worker_lost")
        assert 0.7 <= time.monotonic() - began_at < 5.0

    check(test, tmp_path, waiting_s=0.0, cluster=cluster)


def test_a_session_is_opened_when_there_is_a_worker_for_it(tmp_path: Path) -> None:
    """T5: as a request is, it is held while one starts, whatever the pool's own patience."""

    async def test(at: Whole) -> None:
        at.w.pool._desk._seats._wait_s = 0.05
        opening = at.client.start("POST", "/v1/sessions", {"id": "s"})
        await at.until(lambda: len(at.w.runtime.spawned) == 1)
        await asyncio.sleep(0.2)
        assert not opening.task.done()
        at.w.runtime.starts.set()
        assert (await opening.whole()).status == 200

    check(test, tmp_path)


def test_many_that_wait_make_one_look(tmp_path: Path) -> None:
    """N45: an ingress with two hundred parked requests asks the pool no more often than one with one."""

    async def test(at: Whole) -> None:
        asked = 0
        members = at.ingress.pool.members

        async def count() -> Any:
            nonlocal asked
            asked += 1
            return await members()

        at.ingress.pool.members = count  # type: ignore[method-assign]
        calls = begin(at, [], "stateless", count=200)
        await at.until(lambda: len(at.ingress.router.parking) == 200)
        asked = 0
        await asyncio.sleep(1.0)
        assert asked <= 8
        assert (await at.client.get("/health")).json()["status"] == "unavailable"
        at.w.runtime.starts.set()
        await asyncio.gather(*(call.task for call in calls))
        assert {call.status for call in calls} == {200}

    check(test, tmp_path)
