"""Idle sessions leave a hot worker by themselves, between turns, and find their history where they go (rule P3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from actors.messages import Finished, LeaveSession, Outcome, Reason, SessionLeft
from actors.ports import Placement
from cluster.rebalance import Move
from configs import RebalanceConfig
from tests.cluster.test_pool import World, submit_of, world

QUICK = RebalanceConfig(enabled=True, hot=1.2, min_requests=3, delay_s=0.05, pause_s=60.0, max_moves=4)


def run(test: Callable[[World], Awaitable[None]], folder: Path, settings: RebalanceConfig | None = None) -> None:
    async def main() -> None:
        async with world(
            folder,
            workers=1,
            change=lambda config: config if settings is None else replace(config, rebalance=settings),
            prepare=lambda runtime: setattr(runtime, "step_s", 0.002),
        ) as made:
            await test(made)

    asyncio.run(main())


async def end_of(w: World, placed: Placement, key: str) -> Finished:
    shell = w.runtime.workers[placed.worker_id].shell
    while True:
        for event in await shell.poll("i"):
            if isinstance(event, Finished) and event.key == key:
                return event


async def moved_sessions(w: World) -> int:
    moved = (await w.pool.status())["pool"]["sessions_moved"]  # type: ignore[index]
    assert isinstance(moved, int)
    return moved


def test_idle_sessions_leave_a_hot_worker_and_busy_ones_stay(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        (old,) = await w.until_ready(1)
        busy = [await w.open(f"busy{number}") for number in range(4)]
        idle = [await w.open(f"idle{number}") for number in range(3)]
        for number, placed in enumerate(idle):
            await w.turn(placed, f"i{number}")
        for number, placed in enumerate(busy):
            w.runtime.workers[old].shell.submit(submit_of(placed, f"b{number}", 400))
        w.pool.set_workers(2)
        new = next(one for one in await w.until_ready(2) if one != old)

        async def reached() -> bool:
            return await moved_sessions(w) > 0

        await w.until(reached)
        places = [await w.pool.place("t", f"idle{number}") for number in range(3)]
        gone = [one for one in places if one.worker_id == new]
        assert len(gone) == await moved_sessions(w)
        assert all(one.session.epoch == 2 for one in gone)
        assert [(await w.pool.place("t", f"busy{number}")).worker_id for number in range(4)] == [old] * 4
        for placed in gone:
            second = await w.turn(placed, f"again-{placed.session.session_id}")
            assert (second.outcome, second.turn, second.prompt_tokens) == (Outcome.LENGTH, 2, 20 + 4 + 20)
        for number in range(4):
            w.runtime.workers[old].shell.submit(submit_of(busy[number], f"late{number}", 1))
            assert (await end_of(w, busy[number], f"late{number}")).reason is Reason.SESSION_BUSY

    run(test, tmp_path, QUICK)


def test_nothing_moves_unless_it_was_asked_for(tmp_path: Path) -> None:
    """P3: off, a session stays while its worker lives."""

    async def test(w: World) -> None:
        (old,) = await w.until_ready(1)
        idle = await w.open("idle")
        await w.turn(idle, "i")
        for number in range(4):
            placed = await w.open(f"busy{number}")
            w.runtime.workers[old].shell.submit(submit_of(placed, f"b{number}", 300))
        w.pool.set_workers(2)
        await w.until_ready(2)
        await asyncio.sleep(0.2)
        assert await w.pool.place("t", "idle") == Placement(old, await w.pool.get_session("t", "idle"))
        assert await moved_sessions(w) == 0

    run(test, tmp_path)


def test_a_session_that_has_a_turn_or_another_owner_does_not_move(tmp_path: Path) -> None:
    """P3: what was decided is asked again of the owner, which alone knows."""

    async def test(w: World) -> None:
        (old,) = await w.until_ready(1)
        busy, idle, fresh = await w.open("busy"), await w.open("idle"), await w.open("fresh")
        await w.turn(idle, "i1")
        w.runtime.workers[old].shell.submit(submit_of(busy, "b1", 300))
        w.pool.set_workers(2)
        new = next(one for one in await w.until_ready(2) if one != old)
        desk = w.pool._desk
        assert not await desk.give(Move(("t", "busy"), old, new))
        assert not await desk.give(Move(("t", "fresh"), old, new)), "it is not in memory there: nothing is won"
        assert not await desk.give(Move(("t", "idle"), new, old))
        assert await desk.give(Move(("t", "idle"), old, new))
        assert not await desk.give(Move(("t", "idle"), old, new))
        assert fresh.session.epoch == (await w.pool.place("t", "fresh")).session.epoch
        assert (await end_of(w, busy, "b1")).outcome is Outcome.LENGTH

    run(test, tmp_path)


def test_a_turn_that_comes_with_the_old_place_is_sent_to_the_new_one(tmp_path: Path) -> None:
    """T3, P3: an ingress that has not heard of the move finds the session, unseen by its client."""

    async def test(w: World) -> None:
        (old,) = await w.until_ready(1)
        placed = await w.open("s")
        await w.turn(placed, "r1")
        w.pool.set_workers(2)
        new = next(one for one in await w.until_ready(2) if one != old)
        assert await w.pool._desk.give(Move(("t", "s"), old, new))
        late = await w.turn(placed, "r2")
        assert (late.reason, late.redirect) == (Reason.WORKER_LOST, True)
        found = await w.pool.place("t", "s", avoid=old)
        assert found.worker_id == new
        assert (await w.turn(found, "r2-again")).turn == 2

    run(test, tmp_path)


def test_what_was_given_up_to_a_pool_that_died_is_had_again_at_once(tmp_path: Path) -> None:
    """T4, P3: the owner takes no turn of the old epoch any more, and there is no other owner."""

    async def test(w: World) -> None:
        await w.until_ready(1)
        placed = await w.open("s")
        await w.turn(placed, "r1")
        record = placed.session
        leave = LeaveSession(tenant="t", session_id="s", generation=record.generation, epoch=record.epoch)
        left = await w.runtime.ask(placed.worker_id, leave)
        assert isinstance(left, SessionLeft)
        assert left.left
        refused = await w.turn(placed, "r2")
        assert refused.redirect
        placed = await w.pool.place("t", "s", avoid=placed.worker_id)
        assert placed.session.epoch == record.epoch + 1
        assert (await w.turn(placed, "r3")).outcome is not Outcome.ABORT

    run(test, tmp_path)
