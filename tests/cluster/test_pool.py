"""The pool over real workers in this process and a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from actors.messages import (
    Finished,
    OpenSession,
    Outcome,
    SamplingParams,
    SessionClosed,
    SessionMode,
    Submit,
    TurnOf,
)
from actors.ports import NoWorker, Placement, SessionLimit
from actors.records import SessionExists, SessionUnknown
from cluster.pool import Pool
from cluster.store.sqlite import SqliteStore
from configs import ClusterConfig, RemoraConfig, SessionConfig, WorkerConfig
from tests.cluster.local_runtime import LocalRuntime

CLUSTER = ClusterConfig(heartbeat_s=0.01, suspect_s=0.08, dead_s=0.25, start_timeout_s=5.0, drain_grace_s=2.0)


@dataclass
class Wall:
    """A wall clock that tests set."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    pool: Pool
    runtime: LocalRuntime
    store: SqliteStore
    wall: Wall
    config: RemoraConfig
    pools: list[Pool] = field(default_factory=list)

    async def open(self, session_id: str, tenant: str = "t", idle: float | None = None) -> Placement:
        return await self.pool.open_session(
            tenant, session_id, mode=SessionMode.TREE, idle_timeout_s=idle, capacity_tokens=None
        )

    async def turn(self, placed: Placement, rid: str, max_tokens: int = 4) -> Finished:
        """Run a turn where its session lives, to the end."""
        shell = self.runtime.workers[placed.worker_id].shell
        shell.submit(submit_of(placed, rid, max_tokens))
        while True:
            for event in await shell.poll("i"):
                if isinstance(event, Finished) and event.key == rid:
                    return event

    async def until(self, reached: Callable[[], Awaitable[bool]]) -> None:
        """Wait for what the pool will do by itself."""

        async def look() -> None:
            while not await reached():  # noqa: ASYNC110 - what a test waits for has no event
                await asyncio.sleep(0.005)

        await asyncio.wait_for(look(), 60)

    async def states(self) -> dict[str, str]:
        return {member.worker_id: member.state for member in await self.pool.members()}

    async def until_ready(self, count: int) -> list[str]:
        async def reached() -> bool:
            return list((await self.states()).values()) == ["ready"] * count

        await self.until(reached)
        return list(await self.states())

    async def new_pool(self) -> None:
        """The pool's process dies and comes back; its workers live on."""
        await self.pool.abandon()
        self.pool = started(self)


def started(world: World, wait_s: float = 2.0) -> Pool:
    pool = Pool(world.runtime, world.store, world.config, wall_clock=world.wall, wait_s=wait_s)
    pool.start()
    world.pools.append(pool)
    return pool


def submit_of(placed: Placement, rid: str, max_tokens: int) -> Submit:
    record = placed.session
    return Submit(
        key=rid,
        rid=rid,
        ingress="i",
        tenant=record.tenant,
        input_ids=tuple(range(40, 60)),
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        turn=TurnOf(session_id=record.session_id, generation=record.generation, epoch=record.epoch),
    )


def open_at_owner(placed: Placement) -> OpenSession:
    record = placed.session
    return OpenSession(
        tenant=record.tenant,
        session_id=record.session_id,
        generation=record.generation,
        epoch=record.epoch,
        mode=record.mode,
        idle_timeout_s=record.idle_timeout_s,
    )


@asynccontextmanager
async def world(
    folder: Path,
    workers: int = 2,
    sessions: SessionConfig | None = None,
    wait_s: float = 2.0,
    prepare: Callable[[LocalRuntime], None] = lambda runtime: None,
    change: Callable[[RemoraConfig], RemoraConfig] = lambda config: config,
) -> AsyncIterator[World]:
    config = replace(
        RemoraConfig(),
        workers=WorkerConfig(count=workers, runner="toy"),
        cluster=CLUSTER,
        sessions=sessions or SessionConfig(),
    )
    config = change(config)
    store = SqliteStore(folder / "s.sqlite")
    runtime = LocalRuntime(config, store)
    prepare(runtime)
    made = World(None, runtime, store, Wall(), config)  # type: ignore[arg-type]
    made.pool = started(made, wait_s)
    try:
        yield made
    finally:
        for pool in made.pools:
            await pool.abandon()
        await runtime.close()
        store.shut()


def run(test: Callable[[World], Awaitable[None]], folder: Path, **options: object) -> None:
    async def main() -> None:
        async with world(folder, **options) as made:  # type: ignore[arg-type]
            await test(made)

    asyncio.run(main())


def test_the_wanted_number_of_workers_gets_ready(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        ids = await w.until_ready(3)
        assert len(set(ids)) == 3
        status = await w.pool.status()
        rows = status["workers"]
        assert isinstance(rows, list)
        assert [(row["id"], row["state"], row["kv_tokens"] > 0) for row in rows] == [
            (one, "ready", True) for one in ids
        ]

    run(test, tmp_path, workers=3)


def test_new_sessions_spread_over_the_workers(tmp_path: Path) -> None:
    """P2: the worker with most headroom."""

    async def test(w: World) -> None:
        ids = await w.until_ready(2)
        placed = await asyncio.gather(*(w.open(f"s{number}") for number in range(8)))
        owners = [one.worker_id for one in placed]
        assert sorted(owners.count(one) for one in ids) == [4, 4]

    run(test, tmp_path)


def test_a_session_stays_where_it_is_when_workers_come(tmp_path: Path) -> None:
    """P1: adding a worker moves nobody."""

    async def test(w: World) -> None:
        await w.until_ready(1)
        opened = [await w.open(f"s{number}") for number in range(4)]
        w.pool.set_workers(3)
        await w.until_ready(3)
        assert [await w.pool.place("t", f"s{number}") for number in range(4)] == opened

    run(test, tmp_path, workers=1)


def test_an_open_id_is_refused_and_an_unknown_one_too(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        await w.open("s")
        with pytest.raises(SessionExists):
            await w.open("s")
        with pytest.raises(SessionUnknown):
            await w.pool.place("t", "other")
        with pytest.raises(SessionUnknown):
            await w.pool.place("other", "s")

    run(test, tmp_path)


def test_of_many_opens_at_once_one_wins(tmp_path: Path) -> None:
    """S5: session case B04: two first turns at the same instant."""

    async def test(w: World) -> None:
        results = await asyncio.gather(*(w.open("s") for _ in range(10)), return_exceptions=True)
        assert sum(isinstance(result, Placement) for result in results) == 1
        assert sum(isinstance(result, SessionExists) for result in results) == 9

    run(test, tmp_path)


def test_a_killed_worker_is_replaced_and_its_sessions_move_with_their_history(tmp_path: Path) -> None:
    """T4: sessions of a dead worker are placed again on their next turn, from the store."""

    async def test(w: World) -> None:
        await w.until_ready(2)
        placed = await w.open("s")
        first = await w.turn(placed, "r1")
        assert (first.outcome, first.turn) == (Outcome.LENGTH, 1)
        await w.runtime.die(placed.worker_id)
        moved = await w.pool.place("t", "s")
        assert moved.worker_id != placed.worker_id
        assert moved.session.epoch == placed.session.epoch + 1
        second = await w.turn(moved, "r2")
        assert (second.outcome, second.turn) == (Outcome.LENGTH, 2)
        assert second.prompt_tokens == 20 + 4 + 20
        ids = await w.until_ready(2)
        assert placed.worker_id not in ids
        assert len(w.runtime.spawned) == 3

    run(test, tmp_path)


def test_many_places_at_once_after_a_death_give_one_answer(tmp_path: Path) -> None:
    """T3: one owner, under one epoch."""

    async def test(w: World) -> None:
        await w.until_ready(3)
        placed = await w.open("s")
        await w.runtime.die(placed.worker_id)
        answers = await asyncio.gather(*(w.pool.place("t", "s", avoid=placed.worker_id) for _ in range(10)))
        assert len(set(answers)) == 1
        assert answers[0].session.epoch == 2

    run(test, tmp_path, workers=3)


def test_avoid_moves_nothing_off_a_worker_that_lives(tmp_path: Path) -> None:
    """P3: stickiness is not broken because one ingress could not reach the owner."""

    async def test(w: World) -> None:
        placed = await w.open("s")
        again = await w.pool.place("t", "s", avoid=placed.worker_id)
        assert again.worker_id == placed.worker_id

    run(test, tmp_path)


def test_a_frozen_worker_is_suspected_then_replaced_and_fenced(tmp_path: Path) -> None:
    """T3: a worker that was only frozen and comes back finds its epoch stale."""

    async def test(w: World) -> None:
        await w.until_ready(2)
        placed = await w.open("s")
        w.runtime.freeze(placed.worker_id)

        async def suspected() -> bool:
            return (await w.states()).get(placed.worker_id) == "suspect"

        async def replaced() -> bool:
            return placed.worker_id not in await w.states()

        await w.until(suspected)
        assert (await w.pool.place("t", "s")).worker_id == placed.worker_id
        assert (await w.open("new")).worker_id != placed.worker_id
        await w.until(replaced)
        assert w.runtime.workers[placed.worker_id].ended.is_set()
        assert (await w.pool.place("t", "s")).session.epoch == 2

    run(test, tmp_path)


def test_a_suspect_that_answers_again_keeps_its_sessions(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        (only,) = await w.until_ready(1)
        placed = await w.open("s")
        w.runtime.freeze(only)

        async def suspected() -> bool:
            return (await w.states()).get(only) == "suspect"

        await w.until(suspected)
        w.runtime.thaw(only)
        await w.until_ready(1)
        assert await w.pool.place("t", "s") == placed

    run(test, tmp_path, workers=1)


def test_a_new_pool_adopts_the_living_workers_and_moves_nobody(tmp_path: Path) -> None:
    """Killing the pool loses nothing: workers and sessions stay as they are."""

    async def test(w: World) -> None:
        before = await w.until_ready(2)
        opened = [await w.open(f"s{number}") for number in range(4)]
        await w.new_pool()
        assert [await w.pool.place("t", f"s{number}") for number in range(4)] == opened
        assert sorted(await w.until_ready(2)) == sorted(before)
        assert len(w.runtime.spawned) == 2
        status = await w.pool.status()
        assert [row["owned_sessions"] for row in status["workers"]] == [2, 2]  # type: ignore[index]

    run(test, tmp_path)


def test_a_new_pool_finds_the_sessions_of_workers_that_died_meanwhile(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        await w.until_ready(2)
        placed = await w.open("s")
        await w.pool.abandon()
        await w.runtime.die(placed.worker_id)
        await w.new_pool()
        moved = await w.pool.place("t", "s")
        assert (moved.session.epoch, moved.worker_id != placed.worker_id) == (2, True)

    run(test, tmp_path)


def test_a_place_waits_for_a_worker_to_be_ready(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        opening = asyncio.ensure_future(w.open("s"))

        async def spawned() -> bool:
            return len(w.runtime.spawned) == 2

        await w.until(spawned)
        assert not opening.done()
        w.runtime.starts.set()
        assert (await opening).session.epoch == 1

    run(test, tmp_path, prepare=lambda runtime: runtime.starts.clear())


def test_a_place_that_waited_long_enough_says_why_there_is_no_worker(tmp_path: Path) -> None:
    """The cause of a failed start reaches the user."""

    async def test(w: World) -> None:
        with pytest.raises(NoWorker, match="out of memory"):
            await w.open("s")
        pool = (await w.pool.status())["pool"]
        assert isinstance(pool, dict)
        assert (pool["failed_starts"], pool["last_failure"]) == (1, "out of memory")
        assert w.store.count("t") == 0

    run(test, tmp_path, workers=1, wait_s=0.05, prepare=lambda runtime: runtime.failing_starts.append("out of memory"))


def test_limits_on_sessions_name_themselves(tmp_path: Path) -> None:
    """S10: sessions per worker and per tenant."""

    async def test(w: World) -> None:
        await w.until_ready(2)
        await asyncio.gather(w.open("a", "t"), w.open("b", "t"), w.open("c", "u"))
        with pytest.raises(SessionLimit, match="tenant has 2"):
            await w.open("d", "t")
        with pytest.raises(SessionExists):
            await w.open("a", "t")
        await w.open("d", "u")
        with pytest.raises(SessionLimit, match="Every worker has 2"):
            await w.open("e", "v")
        await w.pool.close_session("u", "d", abort_running=False)
        await w.open("e", "v")

    run(test, tmp_path, sessions=SessionConfig(max_per_tenant=2, max_per_worker=2))


def test_opens_at_once_cannot_pass_the_limit_together(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        results = await asyncio.gather(*(w.open(f"s{number}") for number in range(10)), return_exceptions=True)
        assert sum(isinstance(result, Placement) for result in results) <= 3
        assert w.store.count("t") <= 3

    run(test, tmp_path, sessions=SessionConfig(max_per_tenant=3))


def test_close_frees_the_owners_memory_and_is_unknown_the_second_time(tmp_path: Path) -> None:
    """S9: the answer comes after the memory is free, and says what was freed."""

    async def test(w: World) -> None:
        placed = await w.open("s")
        await w.turn(placed, "r1")
        closed = await w.pool.close_session("t", "s", abort_running=False)
        assert closed.known
        assert (closed.turns, closed.freed_tokens > 0) == (1, True)
        assert w.runtime.workers[placed.worker_id].shell.stats()["sessions"] == 0
        with pytest.raises(SessionUnknown):
            await w.pool.close_session("t", "s", abort_running=False)
        assert (await w.open("s")).session.generation > placed.session.generation

    run(test, tmp_path)


def test_close_works_where_the_owner_never_heard_of_the_session(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        await w.open("s")
        assert await w.pool.close_session("t", "s", abort_running=False) == SessionClosed(known=True)
        assert w.store.count("t") == 0

    run(test, tmp_path)


def test_close_works_without_a_living_owner(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        await w.until_ready(2)
        placed = await w.open("s")
        await w.turn(placed, "r1")
        await w.runtime.die(placed.worker_id)
        closed = await w.pool.close_session("t", "s", abort_running=False)
        assert closed == SessionClosed(known=True, turns=1)
        assert w.store.count("t") == 0

    run(test, tmp_path)


def test_a_second_close_during_a_graceful_one_leaves_the_running_turn_alone(tmp_path: Path) -> None:
    """S9: the turn ends normally; closing twice does nothing the second time, not even through another pool."""

    async def test(w: World) -> None:
        placed = await w.open("s")
        shell = w.runtime.workers[placed.worker_id].shell
        shell.submit(submit_of(placed, "r1", 1500))
        await shell.poll("i")
        closing = asyncio.ensure_future(w.pool.close_session("t", "s", abort_running=False))
        await asyncio.sleep(0)
        with pytest.raises(SessionUnknown):
            await w.pool.close_session("t", "s", abort_running=False)
        closed = await closing
        assert (closed.known, closed.turns) == (True, 1)

    run(test, tmp_path)


def test_sessions_without_an_owner_expire_by_the_wall_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S8: expiry closes the session, also when the worker that kept its clock is dead."""
    monkeypatch.setattr("cluster.pool.EXPIRE_S", 0.02)

    async def test(w: World) -> None:
        await w.until_ready(2)
        orphan = await w.open("orphan", idle=60.0)
        await w.open("eternal", idle=0.0)
        kept = next(
            placed
            for placed in [await w.open(f"kept{number}", idle=60.0) for number in range(4)]
            if placed.worker_id != orphan.worker_id
        )
        await w.runtime.die(orphan.worker_id)
        w.wall.now += 59.0
        await asyncio.sleep(0.06)
        assert (await w.pool.get_session("t", "orphan")).owner == orphan.worker_id
        w.wall.now += 2.0

        async def gone() -> bool:
            return "orphan" not in [one.session_id for one in await w.pool.list_sessions("t", after="", limit=10)]

        await w.until(gone)
        assert (await w.pool.get_session("t", "eternal")).epoch == 1
        assert (await w.pool.get_session("t", kept.session.session_id)).epoch == 1

    run(test, tmp_path)


def test_scaling_down_drains_the_cheapest_and_its_sessions_live_on(tmp_path: Path) -> None:
    """P6: the worker with the least session cost goes."""

    async def test(w: World) -> None:
        await w.until_ready(2)
        busy = await w.open("a")
        await w.turn(busy, "r1")
        light = await w.open("b")
        assert light.worker_id != busy.worker_id
        await w.pool.close_session("t", "b", abort_running=False)
        w.pool.set_workers(1)
        await w.until_ready(1)
        assert list(await w.states()) == [busy.worker_id]
        assert w.runtime.workers[light.worker_id].stopped_politely
        assert await w.pool.place("t", "a") == Placement(busy.worker_id, await w.pool.get_session("t", "a"))

    run(test, tmp_path)


def test_a_worker_that_is_drained_finishes_its_turn(tmp_path: Path) -> None:
    """T5: running turns finish."""

    async def test(w: World) -> None:
        (only,) = await w.until_ready(1)
        placed = await w.open("s")
        turn = asyncio.ensure_future(w.turn(placed, "r1", max_tokens=1000))
        await asyncio.sleep(0)
        w.pool.set_workers(0)
        assert (await turn).outcome is Outcome.LENGTH
        await w.until_ready(0)
        assert w.runtime.workers[only].stopped_politely

    run(test, tmp_path, workers=1)


def test_a_pool_is_given_up_while_its_loop_is_being_woken(tmp_path: Path) -> None:
    """Before Python 3.12 `wait_for` swallows a cancellation that meets its result: the loop must end all the same."""

    async def test(w: World) -> None:
        await w.until_ready(1)
        await asyncio.sleep(0.02)
        w.pool.set_workers(1)  # Wakes the loop; it has not run yet when it is cancelled.
        await asyncio.wait_for(w.pool.abandon(), 60)

    for _ in range(20):
        run(test, tmp_path, workers=1)


def test_shutdown_ends_every_worker_and_starts_none(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        ids = await w.until_ready(2)
        await w.pool.shutdown()
        assert await w.runtime.living() == []
        assert all(w.runtime.workers[one].stopped_politely for one in ids)
        assert len(w.runtime.spawned) == 2

    run(test, tmp_path)


def test_the_owner_told_of_a_session_knows_it(tmp_path: Path) -> None:
    """S11: introspection names the owner and the epoch."""

    async def test(w: World) -> None:
        placed = await w.open("s")
        await asyncio.wrap_future(w.runtime.workers[placed.worker_id].shell.ask(open_at_owner(placed)))
        closed = await w.pool.close_session("t", "s", abort_running=False)
        assert closed.known

    run(test, tmp_path)
