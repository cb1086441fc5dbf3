"""Fork and rollback through the pool, over real workers in this process and a real store (rule S12)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from actors.messages import ForkSession, Outcome, Reason, SessionInfo
from actors.ports import NoWorker, Placement, SessionLimit
from actors.records import SessionExists, SessionUnknown, TurnUnknown
from cluster.store.limits import StoreLimits
from configs import SessionConfig
from tests.cluster.test_pool import World, run, submit_of


async def filled(w: World, turns: int = 3) -> Placement:
    """Session `s` with turns r1 …"""
    placed = await w.open("s")
    for number in range(1, turns + 1):
        assert (await w.turn(placed, f"r{number}")).outcome is Outcome.LENGTH
    return placed


async def told(w: World, made: Placement, source_id: str = "s") -> SessionInfo:
    """The owner hears of a fork, as from an ingress, and says what it makes of it once it has read the history."""
    record = made.session
    message = ForkSession(
        tenant="t",
        session_id=record.session_id,
        generation=record.generation,
        epoch=record.epoch,
        source_id=source_id,
    )
    shell = w.runtime.workers[made.worker_id].shell
    while True:
        info = await asyncio.wrap_future(shell.ask(message))
        assert isinstance(info, SessionInfo)
        if info.state == "idle":
            return info
        await asyncio.sleep(0.005)


def test_a_fork_is_placed_where_its_pages_are(tmp_path: Path) -> None:
    """S12, P1: though another worker has more headroom."""

    async def test(w: World) -> None:
        await w.until_ready(2)
        source = await filled(w)
        made = await w.pool.fork_session("t", "f", source_id="s", turn="r2")
        assert made.worker_id == source.worker_id
        info = await told(w, made)
        assert (info.turns, info.head, info.resident_tokens > 0) == (2, "r2", True)
        end = await w.turn(made, "f1")
        assert end.prompt_tokens == info.tokens + 20
        assert end.cached_tokens >= info.resident_tokens
        status = await w.pool.status()
        assert sorted(row["owned_sessions"] for row in status["workers"]) == [0, 2]  # type: ignore[attr-defined]

    run(test, tmp_path)


def test_a_fork_counts_as_a_session(tmp_path: Path) -> None:
    """S10: of its tenant, and of the worker; a full worker's fork goes to another, and costs a prefill."""

    async def test(w: World) -> None:
        await w.until_ready(2)
        source = await filled(w)
        elsewhere = await w.pool.fork_session("t", "f", source_id="s", turn=None)
        assert elsewhere.worker_id != source.worker_id
        assert (await w.turn(elsewhere, "f1")).turn == 4
        with pytest.raises(SessionLimit):
            await w.pool.fork_session("t", "g", source_id="s", turn=None)

    run(test, tmp_path, sessions=SessionConfig(max_per_worker=1))


def test_a_tenants_limit_holds_for_forks(tmp_path: Path) -> None:
    """S10."""

    async def test(w: World) -> None:
        await w.until_ready(2)
        await filled(w, 1)
        with pytest.raises(SessionLimit):
            await w.pool.fork_session("t", "f", source_id="s", turn=None)

    run(test, tmp_path, sessions=SessionConfig(max_per_tenant=1))


def test_what_cannot_be_forked_or_rolled_back(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        await w.until_ready(2)
        await filled(w, 1)
        with pytest.raises(SessionExists):
            await w.pool.fork_session("t", "s", source_id="s", turn=None)
        with pytest.raises(SessionUnknown):
            await w.pool.fork_session("t", "f", source_id="other", turn=None)
        with pytest.raises(SessionUnknown):
            await w.pool.fork_session("u", "f", source_id="s", turn=None)
        with pytest.raises(TurnUnknown):
            await w.pool.fork_session("t", "f", source_id="s", turn="r9")
        with pytest.raises(SessionUnknown):
            await w.pool.rollback_session("t", "other", turn="r1")
        assert (await w.pool.rollback_session("t", "s", turn="r9")).reason is Reason.PARENT_UNKNOWN

    run(test, tmp_path)


def test_a_rollback_is_in_the_store_when_it_is_answered(tmp_path: Path) -> None:
    """S12, T1."""

    async def test(w: World) -> None:
        await w.until_ready(2)
        placed = await filled(w)
        done = await w.pool.rollback_session("t", "s", turn="r1")
        assert (done.reason, done.dropped, done.info.head if done.info else None) == (None, 2, "r1")
        record = w.store.get("t", "s")
        assert (record.head, record.turns, record.epoch) == ("r1", 1, placed.session.epoch)
        assert (await w.pool.rollback_session("t", "s", turn="r1")).dropped == 0
        assert (await w.turn(placed, "r4")).prompt_tokens == record.tokens + 20

    run(test, tmp_path)


def test_a_running_turn_refuses_a_rollback(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        await w.until_ready(2)
        placed = await filled(w, 2)
        w.runtime.workers[placed.worker_id].shell.submit(submit_of(placed, "long", 1500))
        assert (await w.pool.rollback_session("t", "s", turn="r1")).reason is Reason.SESSION_BUSY
        assert w.store.get("t", "s").turns == 2

    run(test, tmp_path)


def test_a_dead_owners_session_is_rolled_back_by_the_next(tmp_path: Path) -> None:
    """T4: the new owner reads the history first, and is asked again until it has."""

    async def test(w: World) -> None:
        await w.until_ready(2)
        placed = await filled(w)
        await w.runtime.die(placed.worker_id)
        done = await w.pool.rollback_session("t", "s", turn="r2")
        assert (done.reason, done.dropped) == (None, 1)
        again = await w.pool.place("t", "s")
        assert (again.session.epoch, again.session.head) == (2, "r2")
        assert (await w.turn(again, "r3")).prompt_tokens == again.session.tokens + 20

    run(test, tmp_path)


def test_a_fork_outlives_the_worker_that_never_heard_of_it(tmp_path: Path) -> None:
    """T1, T4: it is whole in the store before anybody is told."""

    async def test(w: World) -> None:
        await w.until_ready(2)
        placed = await filled(w)
        made = await w.pool.fork_session("t", "f", source_id="s", turn="r2")
        await w.runtime.die(placed.worker_id)
        moved = await w.pool.place("t", "f", avoid=made.worker_id)
        assert moved.worker_id != made.worker_id
        end = await w.turn(moved, "f1")
        assert (end.turn, end.prompt_tokens) == (3, made.session.tokens + 20)

    run(test, tmp_path)


def test_an_owner_that_never_answers_ends_the_patience(tmp_path: Path) -> None:
    """E4: the caller is told, and may ask again."""

    async def test(w: World) -> None:
        await w.until_ready(1)
        placed = await filled(w, 1)
        w.runtime.workers[placed.worker_id].shell.stop()
        with pytest.raises(NoWorker):
            await w.pool.rollback_session("t", "s", turn="r1")

    run(test, tmp_path, workers=1, wait_s=0.3)


def test_a_fork_that_the_store_has_no_room_for_is_a_limit_that_says_so(tmp_path: Path) -> None:
    """S10: and no session, no seat and no name is taken by it."""

    async def test(w: World) -> None:
        await w.until_ready(2)
        await filled(w)
        w.store._limits = StoreLimits(total_bytes=1)
        with pytest.raises(SessionLimit, match="byte cap"):
            await w.pool.fork_session("t", "f", source_id="s", turn="r2")
        with pytest.raises(SessionUnknown):
            await w.pool.get_session("t", "f")
        w.store._limits = StoreLimits()
        assert (await w.pool.fork_session("t", "f", source_id="s", turn="r2")).session.turns == 2

    run(test, tmp_path)
