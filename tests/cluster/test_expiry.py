"""Sessions expire whoever has them in memory (rules S8, S10)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from actors.messages import GetSession, LeaveSession, SessionInfo
from configs import RemoraConfig
from tests.cluster.test_pool import World, run, world
from tests.cluster.test_pool_drain import drained, gone


async def closed(w: World, session_id: str) -> None:
    async def reached() -> bool:
        return session_id not in [one.session_id for one in await w.pool.list_sessions("t", after="", limit=10)]

    await w.until(reached)


def test_a_session_that_moved_without_its_kv_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S8, T5: its new owner has not read it: without a turn nothing but the pool would ever look at it again."""
    monkeypatch.setattr("cluster.pool.EXPIRE_S", 0.02)

    def change(config: RemoraConfig) -> RemoraConfig:
        sessions = replace(config.sessions, idle_timeout_s=1.0)
        return replace(config, cluster=replace(config.cluster, move_kv_bytes=0), sessions=sessions)

    async def main() -> None:
        async with world(tmp_path, workers=1, change=change) as w:
            old, new = await drained(w, 1)
            await gone(w, old)
            assert (await w.pool.get_session("t", "s0")).owner == new
            w.wall.now = time.time() + 2.0
            await closed(w, "s0")

    asyncio.run(main())


def test_a_session_that_its_owner_let_go_of_expires_and_one_with_a_turn_does_not(tmp_path: Path) -> None:
    """S8: the store's clock does not see a turn that runs; its owner does."""

    async def test(w: World) -> None:
        await w.until_ready(1)
        placed = await w.open("s", idle=60.0)
        await w.turn(placed, "r1")
        record = placed.session
        names = {"tenant": "t", "session_id": "s"}
        leave = LeaveSession(**names, generation=record.generation, epoch=record.epoch)
        await w.runtime.ask(placed.worker_id, leave)
        placed = await w.pool.place("t", "s", avoid=placed.worker_id)
        assert await w.runtime.ask(placed.worker_id, GetSession(**names)) is None
        w.wall.now = time.time() + 61.0  # Turns are stored by the workers' clock.
        assert await w.pool._desk.expire() == 0
        info = await w.runtime.ask(placed.worker_id, GetSession(**names))
        assert isinstance(info, SessionInfo)
        assert info.epoch == placed.session.epoch
        assert await w.pool._desk.expire() == 0
        assert (await w.turn(placed, "r2")).turn == 2

    run(test, tmp_path, workers=1)
