"""A worker that is drained sees its idle sessions off, with their KV (rule T5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.messages import Outcome, SessionMode
from actors.ports import WorkerGone
from actors.records import SessionRecord
from cluster.evacuation import Fate, see_off
from cluster.placement import Directory
from cluster.reconcile import Drain
from configs import RemoraConfig
from tests.cluster.test_pool import World, submit_of, world

PROMPT = 20
REPLY = 4


def run(test: Callable[[World], Awaitable[None]], folder: Path, **cluster: Any) -> None:
    def change(config: RemoraConfig) -> RemoraConfig:
        return replace(config, cluster=replace(config.cluster, **cluster))

    async def main() -> None:
        async with world(folder, workers=1, change=change) as made:
            await test(made)

    asyncio.run(main())


async def drained(w: World, count: int) -> tuple[str, str]:
    """Sessions of one turn each on a worker that is then drained beside a new one. Returns (old, new)."""
    (old,) = await w.until_ready(1)
    for number in range(count):
        await w.turn(await w.open(f"s{number}"), f"r{number}")
    w.pool.set_workers(2)
    new = next(one for one in await w.until_ready(2) if one != old)
    w.pool.set_workers(1)
    w.pool._fleet.act(Drain(old))
    return old, new


async def gone(w: World, worker: str) -> None:
    async def dead() -> bool:
        return w.runtime.workers[worker].ended.is_set()

    await w.until(dead)


def test_idle_sessions_are_gone_before_the_worker_is_and_their_kv_with_them(tmp_path: Path) -> None:
    """T5, K1: the next turn of each finds all full pages of its history on the new worker."""

    async def test(w: World) -> None:
        old, new = await drained(w, 5)
        await gone(w, old)
        assert [record.session_id for record in w.store.owned_by(new)] == [f"s{number}" for number in range(5)]
        for number in range(5):
            placed = await w.pool.place("t", f"s{number}")
            assert (placed.worker_id, placed.session.epoch) == (new, 2)
            told = await w.turn(placed, f"again{number}")
            assert told.prompt_tokens == PROMPT + REPLY + PROMPT
            assert told.cached_tokens >= (PROMPT + REPLY - 1) // 16 * 16
            if number == 0:  # Later ones find some of the same text in the prefix cache.
                assert told.cached_tokens == 16
                assert w.runtime.workers[new].shell.stats()["hibernate"]["woken_turns"] == 1  # type: ignore[index]

    run(test, tmp_path)


@pytest.mark.parametrize("why", ["too large", "lost on the way", "its worker dies"])
def test_without_its_kv_a_session_goes_on_from_history(tmp_path: Path, why: str) -> None:
    """T5, T6: at the price of a prefill, and nobody waits."""

    async def test(w: World) -> None:
        w.runtime.loses_parcels = why == "lost on the way"
        if why == "its worker dies":

            async def dies(source: str, target: str, parcel: str) -> bool:
                raise WorkerGone(source)

            w.runtime.carry = dies  # type: ignore[method-assign]
        old, new = await drained(w, 2)
        await gone(w, old)
        told = await w.turn(await w.pool.place("t", "s0"), "again")
        assert (told.outcome, told.turn) == (Outcome.LENGTH, 2)
        assert told.prompt_tokens == PROMPT + REPLY + PROMPT
        assert w.runtime.workers[new].shell.stats()["hibernate"]["woken_turns"] == 0  # type: ignore[index]
        assert len(w.runtime.workers[new].shell.parcels) == 0

    run(test, tmp_path, **({"move_kv_bytes": 1} if why == "too large" else {}))


def test_kv_that_takes_too_long_is_not_waited_for(tmp_path: Path) -> None:
    """T5: the turn that brought the move about goes on without."""

    async def test(w: World) -> None:
        async def never(source: str, target: str, parcel: str) -> bool:
            await asyncio.Event().wait()
            return True

        w.runtime.carry = never  # type: ignore[method-assign]
        old, _ = await drained(w, 1)
        await gone(w, old)
        assert (await w.turn(await w.pool.place("t", "s0"), "again")).turn == 2

    run(test, tmp_path, move_kv_s=0.05)


def test_a_session_with_a_turn_goes_when_that_is_over(tmp_path: Path) -> None:
    """T5: nothing that runs is disturbed."""

    async def test(w: World) -> None:
        (old,) = await w.until_ready(1)
        busy = await w.open("busy")
        w.runtime.workers[old].shell.submit(submit_of(busy, "b1", 1200))
        w.pool.set_workers(2)
        new = next(one for one in await w.until_ready(2) if one != old)
        w.pool.set_workers(1)
        w.pool._fleet.act(Drain(old))
        await gone(w, old)
        placed = await w.pool.place("t", "busy")
        told = await w.turn(placed, "b2")
        assert (placed.worker_id, told.turn, told.prompt_tokens) == (new, 2, PROMPT + 1200 + PROMPT)
        assert told.cached_tokens == (PROMPT + 1200 - 1) // 16 * 16

    run(test, tmp_path, drain_grace_s=20.0)


def record_of(session_id: str) -> SessionRecord:
    return SessionRecord(
        tenant="t",
        session_id=session_id,
        generation=1,
        epoch=1,
        owner="w1",
        mode=SessionMode.TREE,
        idle_timeout_s=None,
        capacity_tokens=None,
        turns=0,
        tokens=0,
        last_active_at=0.0,
    )


def test_each_is_asked_until_it_is_idle_and_no_more_than_eight_at_once() -> None:
    """T5: those used last go first."""

    async def main() -> None:
        directory = Directory()
        asked: list[str] = []
        at_once = most = 0

        async def move(key: tuple[str, str]) -> Fate:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1
            asked.append(key[1])
            if key[1] == "busy" and asked.count("busy") < 3:
                return Fate.BUSY
            return Fate.STAYS if key[1] == "cold" else Fate.MOVED

        for name in ["cold", *(f"s{number}" for number in range(20)), "busy"]:
            directory.put(record_of(name))
        assert await see_off(directory, "w1", move, 0.0) == 21
        assert (most, asked.count("busy"), asked.count("cold")) == (8, 3, 1)
        assert asked[:2] == ["busy", "s19"]

    asyncio.run(main())
