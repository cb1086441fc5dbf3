"""Ray's control service is away: nothing can be started, ended or listed, and every call that needs it hangs. What the
pool decides by its own clocks must not wait for that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from actors.ports import NoWorker
from cluster import census
from tests.cluster.test_pool import World, run

CENSUS_S = 0.05


@pytest.fixture(autouse=True)
def _counts_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a census is under way whenever something happens."""
    monkeypatch.setattr(census, "CENSUS_S", CENSUS_S)
    monkeypatch.setattr(census, "CENSUS_WAIT_S", 0.02)


async def given_up(at: World, worker_id: str) -> None:
    async def gone() -> bool:
        return worker_id not in await at.states()

    await at.until(gone)


def test_a_worker_that_falls_silent_is_given_up_all_the_same(tmp_path: Path) -> None:
    """T4, field case N48: its sessions go on elsewhere, under the next epoch, while it can neither be ended nor
    replaced; when the service is back, both happen, once."""

    async def check(at: World) -> None:
        await at.until_ready(2)
        placed = await at.open("s")
        await at.turn(placed, "r1")
        at.runtime.control.clear()
        await asyncio.sleep(CENSUS_S * 3)
        at.runtime.freeze(placed.worker_id)
        await given_up(at, placed.worker_id)
        moved = await at.pool.place("t", "s", avoid=placed.worker_id)
        assert moved.session.epoch == placed.session.epoch + 1
        assert (await at.turn(moved, "r2")).prompt_tokens == 20 + 4 + 20
        assert len(at.runtime.workers) == 2
        at.runtime.control.set()
        await at.until_ready(2)
        assert at.runtime.workers[placed.worker_id].ended.is_set()
        assert len(await at.runtime.living()) == 2
        assert len(at.runtime.spawned) == 3, "each worker was started once"

    run(check, tmp_path)


def test_a_session_stays_where_it_is_while_nobody_can_be_listed(tmp_path: Path) -> None:
    """P1, T3."""

    async def check(at: World) -> None:
        await at.until_ready(2)
        placed = await at.open("s")
        at.runtime.control.clear()
        await asyncio.sleep(CENSUS_S * 3)
        again = await at.pool.place("t", "s")
        assert (again.worker_id, again.session.epoch) == (placed.worker_id, placed.session.epoch)
        assert (await at.turn(again, "r1")).completion_tokens == 4

    run(check, tmp_path)


def test_more_workers_are_wanted_meanwhile_and_come_when_they_can(tmp_path: Path) -> None:
    """Scaling resumes by itself, and starts nobody twice."""

    async def check(at: World) -> None:
        await at.until_ready(1)
        at.runtime.control.clear()
        at.pool.set_workers(3)
        await asyncio.sleep(CENSUS_S * 5)
        assert len(await at.states()) == 3
        assert len(at.runtime.workers) == 1
        at.runtime.control.set()
        await at.until_ready(3)
        await asyncio.sleep(CENSUS_S * 3)
        assert len(at.runtime.spawned) == 3

    run(check, tmp_path, workers=1)


def test_a_new_pool_places_nobody_anew_before_it_knows_who_lives(tmp_path: Path) -> None:
    """T3: a living worker's session would be taken for an orphan."""

    async def check(at: World) -> None:
        await at.until_ready(2)
        placed = await at.open("s")
        at.runtime.control.clear()
        await at.new_pool()
        with pytest.raises((asyncio.TimeoutError, NoWorker)):
            await asyncio.wait_for(at.pool.place("t", "s"), CENSUS_S * 5)
        at.runtime.control.set()
        again = await at.pool.place("t", "s")
        assert (again.worker_id, again.session.epoch) == (placed.worker_id, placed.session.epoch)

    run(check, tmp_path)


def test_a_worker_that_is_no_longer_wanted_before_it_was_started_is_ended_after_that(tmp_path: Path) -> None:
    """Its end must not overtake its start, or it would run on unseen."""

    async def check(at: World) -> None:
        await at.until_ready(1)
        at.runtime.control.clear()
        at.pool.set_workers(2)
        await asyncio.sleep(CENSUS_S * 2)
        at.pool.set_workers(1)
        await asyncio.sleep(CENSUS_S * 2)
        assert len(await at.states()) == 1
        at.runtime.control.set()

        async def one_left() -> bool:
            return len(at.runtime.spawned) == 2 and len(await at.runtime.living()) == 1

        await at.until(one_left)
        assert len(await at.until_ready(1)) == 1

    run(check, tmp_path, workers=1)
