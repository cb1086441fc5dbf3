"""Generation is paused on all workers: also on those that start meanwhile, and for a pool that begins meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from actors.messages import Outcome, PauseMode
from cluster.pausing import Pausing
from tests.cluster.test_pool import World, started, submit_of, world


async def all_paused(w: World, count: int) -> bool:
    alive = [worker.shell.stats()["paused"] for worker in w.runtime.workers.values() if not worker.ended.is_set()]
    return alive == [True] * count


async def one_turn_that_waits(w: World) -> asyncio.Task[Any]:
    """A turn that is sent while nothing is computed: it does not end before that changes."""
    placed = await w.open("s")
    task = asyncio.ensure_future(w.turn(placed, "r1"))
    shell = w.runtime.workers[placed.worker_id].shell
    await w.until(lambda: asyncio.sleep(0, shell.stats()["waiting"] == 1))
    return task


def test_no_worker_computes_anything_until_it_goes_on(tmp_path: Path) -> None:
    """Session case A23: new requests wait, and run afterwards."""

    async def check() -> None:
        async with world(tmp_path, workers=2) as w:
            await w.until_ready(2)
            answer: Any = await w.pool.pause(PauseMode.ABORT)
            assert answer["paused"]
            assert answer["unreachable"] == []
            assert [row["requests"] for row in answer["workers"]] == [0, 0]
            assert await all_paused(w, 2)
            turn = await one_turn_that_waits(w)
            status: Any = await w.pool.status()
            assert status["pool"]["paused"]
            assert not turn.done()
            assert not (await w.pool.resume())["paused"]
            assert (await turn).outcome is Outcome.LENGTH

    asyncio.run(check())


def test_pausing_ends_what_runs_in_every_session_of_every_tenant(tmp_path: Path) -> None:
    """A1: as an operator's abort of all."""

    async def check() -> None:
        async with world(tmp_path, workers=1) as w:
            await w.until_ready(1)
            placed = await w.open("s", tenant="acme")
            shell = w.runtime.workers[placed.worker_id].shell
            shell.submit(submit_of(placed, "r1", 1000))
            await w.until(lambda: asyncio.sleep(0, shell.stats()["running"] == 1))
            await w.pool.pause(PauseMode.ABORT)
            assert shell.stats()["live"] == 0

    asyncio.run(check())


def test_a_worker_that_starts_meanwhile_is_paused_too(tmp_path: Path) -> None:
    """T4: one that dies is replaced, and what replaces it stands still like the others."""

    async def check() -> None:
        async with world(tmp_path, workers=2) as w:
            first, _ = await w.until_ready(2)
            await w.pool.pause(PauseMode.IN_PLACE)
            await w.runtime.die(first)
            await w.until(lambda: all_paused(w, 2))
            assert len(w.runtime.spawned) == 3
            await w.pool.resume()
            await w.until(lambda: asyncio.sleep(0, True))
            assert not any(
                worker.shell.stats()["paused"] for worker in w.runtime.workers.values() if not worker.ended.is_set()
            )

    asyncio.run(check())


def test_a_pool_that_begins_meanwhile_finds_that_it_is_paused(tmp_path: Path) -> None:
    """T4: killing the pool loses nothing, this not either."""

    async def check() -> None:
        async with world(tmp_path, workers=2) as w:
            await w.until_ready(2)
            await w.pool.pause(PauseMode.IN_PLACE)
            await w.pool.abandon()
            w.pool = started(w)
            first, _ = await w.until_ready(2)

            async def known() -> bool:
                status: Any = await w.pool.status()
                return bool(status["pool"]["paused"])

            await w.until(known)
            await w.runtime.die(first)
            await w.until(lambda: all_paused(w, 2))
            await w.pool.resume()
            turn = await w.turn(await w.open("s"), "r1")
            assert turn.outcome is Outcome.LENGTH

    asyncio.run(check())


def test_a_worker_that_does_not_answer_is_named_and_told_again(tmp_path: Path, monkeypatch: Any) -> None:
    async def check() -> None:
        async with world(tmp_path, workers=2) as w:
            first, second = await w.until_ready(2)
            pausing: Pausing = w.pool._pausing
            w.runtime.freeze(first)
            answer: Any = await w.pool.pause(PauseMode.IN_PLACE)
            assert answer["unreachable"] == [first]
            assert [row["id"] for row in answer["workers"]] == [second]
            w.runtime.thaw(first)
            await w.until(lambda: all_paused(w, 2))
            assert pausing.paused

    monkeypatch.setattr("cluster.pausing.ANSWER_S", 0.02)
    monkeypatch.setattr("cluster.pausing.MEND_S", 0.02)
    asyncio.run(check())
