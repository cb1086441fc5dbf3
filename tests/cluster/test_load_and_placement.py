"""What the load figures, placement and scaling do under a minute's traffic, in fast numbers; the real policies."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from configs import AutoscaleConfig, EngineConfig, RebalanceConfig
from tests.cluster.edge import Whole, whole
from tests.ingress.asgi import Call, run


def check(test: Callable[[Whole], Awaitable[None]], folder: Path, **settings: Any) -> None:
    async def main() -> None:
        async with whole(folder, **settings) as at:
            await at.until_workers(settings.get("workers", 1))
            await test(at)

    run(main(), 60.0)


async def opened(at: Whole, name: str, words: str = "hello", max_tokens: int = 4) -> str:
    """A session of one turn; the worker that ran it."""
    call = await at.client.chat(words, session={"id": name, "create": True}, max_tokens=max_tokens).whole()
    assert call.status == 200, call.body
    return str(call.json()["session"]["worker"])


# -- the autoscaler sees zero ------------------------------------------------------------------------------------------


def test_after_the_last_end_the_load_is_nothing_and_one_worker_is_left(tmp_path: Path) -> None:
    """E6: field case N18: three in ten are refused, three in ten leave in the middle; the load counts 0 then."""
    scaling = AutoscaleConfig(
        enabled=True, min_workers=1, max_workers=3, requests_per_worker=4, up_delay_s=0.05, down_delay_s=0.5
    )

    async def stream(at: Whole, number: int) -> Call:
        kind = number % 10
        words = "x" * 9000 if kind < 3 else "hello"  # Longer than the context: refused by the worker.
        call = at.client.chat(words, stream=True, max_tokens=80)
        if kind >= 7:
            await call.piece()
            call.disconnect()
        return await call.whole()

    async def test(at: Whole) -> None:
        most = 0
        running = [asyncio.ensure_future(stream(at, number)) for number in range(70)]
        while not all(one.done() for one in running):
            most = max(most, len(await at.workers()))
            await asyncio.sleep(0.01)
        ended_at = time.monotonic()
        calls = [one.result() for one in running]
        for number, call in enumerate(calls):
            if number % 10 < 3:
                assert (call.status, call.json()["error"]["reason"]) == (400, "too_large")
            elif number % 10 < 7:
                assert call.events[-1] == "[DONE]"
                assert len(call.text) == 80
        assert most == 3

        async def quiet() -> bool:
            if any(member.load for member in await at.w.pool.members()):  # What scaling goes by.
                return False
            stats = await at.stats()
            figures = [row[name] for row in stats["workers"] for name in ("running", "waiting", "live")]
            return not any(figures) and not stats["pool"]["parked"] and not stats["ingress"]["open_requests"]

        await at.until_so(quiet)
        assert time.monotonic() - ended_at < 5.0
        await at.until_workers(1)
        ends: Counter[tuple[str, str]] = Counter()
        for (outcome, reason, _), count in at.ends().items():
            ends[outcome, reason] += count
        assert ends == {("length", ""): 28, ("abort", "too_large"): 21, ("abort", "client_disconnect"): 21}

    check(test, tmp_path, step_s=0.003, autoscale=scaling, engine=EngineConfig(max_running=4))


# -- a hot owner -------------------------------------------------------------------------------------------------------


@dataclass
class Told:
    """A turn that was answered."""

    worker: str
    prompt: int
    cached: int
    length: int


async def use(at: Whole, name: str, until: float) -> tuple[list[Told], int]:
    """Turn after turn of a session until the time is over; how often the queue was full."""
    told: list[Told] = []
    sheds = 0
    while time.monotonic() < until or not told:
        call = await at.client.chat("and then?", session={"id": name}, max_tokens=8).whole()
        if call.status == 429:
            assert call.json()["error"]["reason"] == "queue_full"
            assert int(call.headers["retry-after"]) >= 1
            sheds += 1
            await asyncio.sleep(0.05)
            continue
        assert call.status == 200, call.body
        usage = call.json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        length = usage["prompt_tokens"] + usage["completion_tokens"]
        told.append(Told(call.json()["session"]["worker"], usage["prompt_tokens"], cached, length))
    return told, sheds


@pytest.mark.parametrize("balanced", [False, True], ids=["without rebalancing", "with rebalancing"])
def test_a_hot_owner_sheds_and_newcomers_go_elsewhere(tmp_path: Path, balanced: bool) -> None:
    """N42, P2, P3: nothing moves during a turn; with rebalancing, sessions move between turns, each once at most; those
    that stay keep their KV."""
    settings = RebalanceConfig(
        enabled=balanced, hot=1.3, min_requests=4, delay_s=0.2, max_moves=3, pause_s=0.5, settle_s=600.0
    )

    async def test(at: Whole) -> None:
        (hot,) = await at.workers()
        names = [f"old{number}" for number in range(30)]
        long = {name: f"{name} " * 30 for name in names}  # No prefix is shared.
        for name in names:
            assert await opened(at, name, long[name]) == hot
        at.w.pool.set_workers(3)
        await at.until_workers(3)
        until = time.monotonic() + 2.5
        using = [asyncio.ensure_future(use(at, name, until)) for name in names]
        newcomers = Counter([await opened(at, f"new{number}") for number in range(30)])
        found = dict(zip(names, await asyncio.gather(*using), strict=True))
        assert newcomers[hot] <= 3, "but where it has just ended its requests"
        assert len(set(newcomers) - {hot}) == 2
        moved = 0
        shares = []
        for told, _ in found.values():
            places = [one.worker for one in told]
            changes = sum(before != after for before, after in itertools.pairwise([hot, *places]))
            assert changes <= 1
            moved += changes
            for before, after in itertools.pairwise(told):
                assert after.prompt > before.length, "a turn without its history"
                if before.worker == after.worker:
                    shares.append(after.cached / before.length)
        if balanced:
            assert 0 < moved < 30
        else:
            assert moved == 0
            assert sum(sheds for _, sheds in found.values()) > 0
        assert sum(shares) / len(shares) >= 0.9
        assert (await at.stats())["pool"]["sessions_moved"] >= moved  # Some after their last turn.

    engine = EngineConfig(max_running=4, max_waiting=6)
    check(test, tmp_path, step_s=0.003, engine=engine, rebalance=settings)


# -- which worker goes -------------------------------------------------------------------------------------------------


def test_the_emptiest_worker_goes_first_and_no_more_sessions_move_than_must(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """N43, P6, T5: of 50, 2 and 0 sessions: first the one without, then the one with 2; why is in the log."""
    scaling = AutoscaleConfig(
        enabled=True, min_workers=1, max_workers=3, requests_per_worker=4, up_delay_s=60.0, down_delay_s=0.4
    )

    async def test(at: Whole) -> None:
        (first,) = await at.workers()
        for number in range(50):
            await opened(at, f"s{number}")
        busy = [at.client.chat("go", session={"id": f"s{number}"}, max_tokens=1500) for number in range(5)]
        at.w.pool.set_workers(2)
        second = next(one for one in await at.until_workers(2) if one != first)

        async def seen() -> bool:
            return max(member.load for member in await at.w.pool.members()) == 5

        await at.until_so(seen)
        assert {await opened(at, f"t{number}") for number in range(2)} == {second}
        at.w.pool.set_workers(3)
        third = next(one for one in await at.until_workers(3) if one not in (first, second))
        left: list[str] = []

        async def gone(count: int) -> bool:
            states = await at.workers()
            left.extend(one for one in (first, second, third) if one not in states and one not in left)
            return len(left) >= count

        await at.until_so(lambda: gone(1))
        assert not any(call.task.done() for call in busy), "the load was over too early to tell"
        for call in busy:
            assert (await call.whole()).status == 200
        await at.until_so(lambda: gone(2))
        assert left == [third, second]
        records = at.w.store.list_sessions("default")
        assert len(records) == 52
        assert {record.session_id for record in records if record.epoch > 1} <= {"t0", "t1"}
        for name in ("s0", "s49", "t0", "t1"):
            call = await at.turn(name, max_tokens=2)
            assert (call.status, call.json()["session"]["worker"]) == (200, first)
        why = r"2 workers wanted instead of 3: for 0\.4 s: \d requests at 3\.2 per worker ask for 2"
        assert re.search(why, caplog.text)
        assert "1 workers wanted instead of 2: for 0.4 s: one serves" in caplog.text
        assert caplog.text.index(f"draining {third}") < caplog.text.index(f"draining {second}")

    caplog.set_level(logging.INFO, logger="remora.pool")
    check(test, tmp_path, step_s=0.001, autoscale=scaling, engine=EngineConfig(max_running=16))
