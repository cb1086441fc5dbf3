"""The pool adds, drains and ends workers by their load, and nobody who asks for something notices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from actors.messages import Finished, Outcome, Reason
from actors.ports import Placement
from actors.worker.shell import WorkerStopped
from cluster.reconcile import Drain
from configs import AutoscaleConfig, RemoraConfig
from tests.cluster import test_pool as rig
from tests.cluster.test_pool import World, submit_of, world

QUICK = AutoscaleConfig(
    enabled=True,
    min_workers=1,
    max_workers=3,
    requests_per_worker=4,
    up_delay_s=0.05,
    down_delay_s=0.3,
    idle_s=0.4,
)


def run(
    test: Callable[[World], Awaitable[None]], folder: Path, autoscale: AutoscaleConfig | None = None, workers: int = 1
) -> None:
    async def main() -> None:
        async with world(folder, workers=workers, change=lambda config: patient(config, autoscale)) as made:
            await test(made)

    asyncio.run(main())


def patient(config: RemoraConfig, autoscale: AutoscaleConfig | None) -> RemoraConfig:
    """With all the time a drain may need on a busy machine."""
    cluster = replace(config.cluster, drain_grace_s=60.0)
    return replace(config, cluster=cluster, autoscale=autoscale or config.autoscale)


async def end_of(w: World, worker_id: str, key: str) -> Finished:
    shell = w.runtime.workers[worker_id].shell
    while True:
        for event in await shell.poll("i"):
            if isinstance(event, Finished) and event.key == key:
                return event


async def chat(
    w: World, session_id: str, turns: int, max_tokens: int = 60, enough: asyncio.Event | None = None
) -> list[Finished]:
    """As an ingress does: to where it last was, and where that is over, to where the pool says. `turns`, and more until
    it is `enough`."""
    placed = await w.open(session_id)
    ends: list[Finished] = []
    while len(ends) < turns or (enough is not None and not enough.is_set()):
        rid = f"{session_id}-{len(ends)}"
        while True:
            end = await attempt(w, placed, rid, max_tokens)
            if end is not None and end.reason not in (Reason.WORKER_DRAINING, Reason.WORKER_LOST) and not end.redirect:
                break
            await asyncio.sleep(0.01)
            placed = await w.pool.place("t", session_id, avoid=placed.worker_id)
        ends.append(end)
    return ends


async def attempt(w: World, placed: Placement, rid: str, max_tokens: int) -> Finished | None:
    """None: its worker is no more."""
    shell = w.runtime.workers[placed.worker_id].shell
    message = replace(submit_of(placed, rid, max_tokens), key=f"{rid}@{placed.worker_id}", ingress=rid)
    try:
        shell.submit(message)
    except WorkerStopped:
        return None
    while shell.alive:
        for event in await shell.poll(rid, timeout_s=0.2):
            if isinstance(event, Finished) and event.key == message.key:
                return event
    return None


def test_one_to_three_to_one_under_load_and_nobody_gets_an_error(tmp_path: Path) -> None:
    """T5, P6: scaled up by load, down by draining; every turn ends well, with its whole history."""

    async def test(w: World) -> None:
        await w.until_ready(1)
        enough = asyncio.Event()
        chats = [asyncio.ensure_future(chat(w, f"s{number}", 4, 20, enough)) for number in range(24)]

        async def three() -> bool:
            return len(await w.states()) == 3

        await w.until(three)
        enough.set()
        ends = await asyncio.gather(*chats)
        await w.until_ready(1)
        assert {(end.outcome, end.reason) for one in ends for end in one} == {(Outcome.LENGTH, None)}
        assert [w.store.get("t", f"s{number}").turns for number in range(24)] == [len(one) for one in ends]
        assert (await w.pool.status())["pool"]["desired_workers"] == 1  # type: ignore[index]
        assert [end.turn for end in await chat_on(w, "s0", len(ends[0]) + 1)] == [len(ends[0]) + 1]

    run(test, tmp_path, replace(QUICK, idle_s=60.0))


async def chat_on(w: World, session_id: str, number: int) -> list[Finished]:
    placed = await w.pool.place("t", session_id)
    end = await attempt(w, placed, f"{session_id}-again-{number}", 4)
    assert end is not None
    return [end]


def test_the_last_worker_goes_when_nothing_runs_and_the_first_request_brings_one_back(tmp_path: Path) -> None:
    """Scale to zero holds the request until a worker is there."""

    async def test(w: World) -> None:
        await w.until_ready(1)
        placed = await w.open("s")
        await w.turn(placed, "r1")
        await w.until_ready(0)
        assert (await w.pool.status())["pool"]["desired_workers"] == 0  # type: ignore[index]
        again = await w.pool.place("t", "s")
        assert again.worker_id != placed.worker_id
        second = await w.turn(again, "r2")
        assert (second.outcome, second.turn, second.prompt_tokens) == (Outcome.LENGTH, 2, 20 + 4 + 20)
        assert len(w.runtime.spawned) == 2

    run(test, tmp_path, replace(QUICK, min_workers=0))


def test_a_request_without_a_session_that_waits_at_an_ingress_brings_a_worker_back(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        await w.until_ready(1)
        await w.until_ready(0)
        await asyncio.sleep(0.1)
        assert len(w.runtime.spawned) == 1
        await w.pool.wake()
        await w.until_ready(1)

    run(test, tmp_path, replace(QUICK, min_workers=0))


def test_without_autoscaling_the_number_is_what_was_said(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        await w.until_ready(1)
        await w.pool.wake()
        placed = [await w.open(f"s{number}") for number in range(12)]
        turns = [asyncio.ensure_future(w.turn(one, f"r{number}", 300)) for number, one in enumerate(placed)]
        await asyncio.sleep(0.2)
        assert len(await w.states()) == 1
        for turn in turns:
            turn.cancel()

    run(test, tmp_path)


def test_a_new_pool_ends_none_of_the_workers_that_it_finds(tmp_path: Path) -> None:
    """The number that the pool before it had come to is gone on from."""

    async def test(w: World) -> None:
        await w.until_ready(1)
        w.pool.set_workers(3)
        before = await w.until_ready(3)
        await w.new_pool()
        assert sorted(await w.until_ready(3)) == sorted(before)
        assert len(w.runtime.spawned) == 3

    run(test, tmp_path, replace(QUICK, down_delay_s=60.0, idle_s=60.0))


def test_an_idle_session_leaves_a_worker_that_is_drained_and_a_busy_one_stays(tmp_path: Path) -> None:
    """T5: running turns finish; idle sessions move between turns, under a higher epoch."""

    async def test(w: World) -> None:
        (old,) = await w.until_ready(1)
        idle, busy = await w.open("idle"), await w.open("busy")
        await w.turn(idle, "i1")
        w.runtime.workers[old].shell.submit(submit_of(busy, "b1", 1200))
        w.pool.set_workers(2)
        await w.until_ready(2)
        w.pool._fleet.act(Drain(old))

        async def closed() -> bool:
            return bool(w.runtime.workers[old].shell.stats()["draining"])

        await w.until(closed)
        assert (await w.pool.place("t", "busy")).worker_id == old
        moved = await w.pool.place("t", "idle", avoid=old)
        assert moved.worker_id != old, "the other one, or the one that is started in place of the old"
        assert moved.session.epoch == idle.session.epoch + 1
        assert (await w.turn(moved, "i2")).turn == 2
        assert (await end_of(w, old, "b1")).outcome is Outcome.LENGTH
        assert (await w.pool.place("t", "busy")).worker_id != old

    run(test, tmp_path)


def test_when_the_grace_is_over_what_has_no_token_yet_may_go_elsewhere(tmp_path: Path) -> None:
    """T5, E2: requests of a worker that had to be ended have reason `worker_draining`."""

    async def test(w: World) -> None:
        (only,) = await w.until_ready(1)
        placed = await w.open("s")
        w.runtime.workers[only].shell.submit(submit_of(placed, "r1", 2000))
        w.pool.set_workers(0)
        end = await end_of(w, only, "r1")
        assert (end.outcome, end.reason) == (Outcome.ABORT, Reason.WORKER_DRAINING)
        assert w.store.get("t", "s").turns == 0

    async def main() -> None:
        grace = replace(rig.CLUSTER, drain_grace_s=0.1)
        async with world(
            tmp_path,
            workers=1,
            change=lambda config: replace(config, cluster=grace),
            prepare=lambda runtime: setattr(runtime, "step_s", 0.002),
        ) as made:
            await test(made)

    asyncio.run(main())


def test_a_drain_that_a_pool_began_is_finished_by_the_next(tmp_path: Path) -> None:
    """A worker with a closed door takes no turns: a pool that adopted it as ready would send sessions in circles."""

    async def test(w: World) -> None:
        (old,) = await w.until_ready(1)
        placed = await w.open("s")
        w.runtime.workers[old].shell.submit(submit_of(placed, "r1", 1500))
        w.pool._fleet.act(Drain(old))

        async def closed() -> bool:
            return bool(w.runtime.workers[old].shell.stats()["draining"])

        await w.until(closed)
        await w.new_pool()

        async def replaced() -> bool:
            states = await w.states()
            return old not in states and "ready" in states.values()

        assert (await end_of(w, old, "r1")).outcome is Outcome.LENGTH
        await w.until(replaced)
        assert w.runtime.workers[old].stopped_politely
        assert (await w.pool.place("t", "s")).session.epoch == 2

    run(test, tmp_path)


@pytest.mark.parametrize("count", [0, 5])
def test_set_workers_keeps_to_the_bounds_of_autoscaling(tmp_path: Path, count: int) -> None:
    async def test(w: World) -> None:
        await w.until_ready(1)
        w.pool.set_workers(count)
        await w.until_ready(min(max(count, 1), 3))

    run(test, tmp_path, replace(QUICK, down_delay_s=60.0, idle_s=60.0))
