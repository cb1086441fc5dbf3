"""New sessions go by what workers do now, and not by what they did a heartbeat ago (rule P2); real workers."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

from actors.messages import Abort, SamplingParams, Submit
from actors.runner.toy import ToyRunner
from cluster.glance import FRESH_S, PATIENCE_S, Glance
from cluster.membership import Membership
from configs import ClusterConfig
from tests.cluster.test_pool import World, world

BEAT_S = 0.7
SLOWLY = ClusterConfig(heartbeat_s=BEAT_S, suspect_s=20.0, dead_s=30.0, start_timeout_s=30.0)


async def with_workers(folder: Path, count: int, test, **options) -> None:  # type: ignore[no-untyped-def]
    def prepare(runtime) -> None:  # type: ignore[no-untyped-def]
        runtime.step_s = 0.01
        runtime.make_runner = lambda **given: ToyRunner(**{**given, "kv_tokens": 65536})

    change = lambda config: replace(config, cluster=SLOWLY)  # noqa: E731
    async with world(folder, workers=count, change=change, prepare=prepare, **options) as made:
        await made.until_ready(count)
        await test(made)


def stateless(name: str) -> Submit:
    sampling = SamplingParams(max_tokens=1000, ignore_eos=True)
    return Submit(key=name, rid=name, ingress="i", tenant="t", input_ids=tuple(range(40, 60)), sampling=sampling)


async def loads(w: World) -> dict[str, int]:
    return {member.worker_id: member.load for member in await w.pool.members()}


async def spread(w: World, sessions: int = 8, name: str = "s") -> list[int]:
    placed = await asyncio.gather(*(w.open(f"{name}{number}") for number in range(sessions)))
    found = Counter(one.worker_id for one in placed)
    return sorted(found[worker_id] for worker_id in w.runtime.workers)


async def run_and_abort(w: World, worker_id: str, requests: int = 6) -> None:
    """Requests without a session run until a heartbeat has told of them, and are over when this returns."""
    shell = w.runtime.workers[worker_id].shell
    for number in range(requests):
        shell.submit(stateless(f"r{number}"))

    async def told() -> bool:
        return (await loads(w))[worker_id] == requests

    await w.until(told)
    rids = tuple(f"r{number}" for number in range(requests))
    await asyncio.wrap_future(shell.ask(Abort(tenant="t", rids=rids)))
    await asyncio.sleep(FRESH_S)


def test_sessions_spread_evenly_right_after_other_requests(tmp_path: Path) -> None:
    """P2: one worker's last heartbeat tells of requests that are over."""

    async def test(w: World) -> None:
        first, second = w.runtime.workers
        await run_and_abort(w, first)
        assert (await loads(w))[first] == 6, "a heartbeat came in between: nothing is shown"
        assert await spread(w) == [4, 4]
        await run_and_abort(w, second)
        assert (await loads(w))[second] == 6, "a heartbeat came in between: nothing is shown"
        assert await spread(w, name="t") == [4, 4]

    asyncio.run(with_workers(tmp_path, 2, test))


def test_a_session_goes_round_requests_that_no_heartbeat_has_told_of(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        first, second = w.runtime.workers
        for number in range(6):
            w.runtime.workers[first].shell.submit(stateless(f"r{number}"))
        assert (await loads(w))[first] == 0, "a heartbeat came in between: nothing is shown"
        await asyncio.sleep(2 * FRESH_S)
        assert {(await w.open(f"s{number}")).worker_id for number in range(4)} == {second}

    asyncio.run(with_workers(tmp_path, 2, test))


def test_sessions_spread_evenly_right_after_others_were_used_and_closed(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        for turn in range(3):
            placed = [await w.open(f"{turn}-{number}") for number in range(5 + turn)]
            for number, one in enumerate(placed):
                await w.turn(one, f"r{turn}-{number}")
            for one in placed:
                await w.pool.close_session("t", one.session.session_id, abort_running=True)
            assert await spread(w, name=f"s{turn}-") == [4, 4]
            for number in range(8):
                await w.pool.close_session("t", f"s{turn}-{number}", abort_running=True)

    asyncio.run(with_workers(tmp_path, 2, test))


def test_a_worker_that_does_not_answer_delays_nobody_for_long(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        first, _ = w.runtime.workers
        w.runtime.freeze(first)
        await asyncio.sleep(2 * FRESH_S)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(*(w.open(f"s{number}") for number in range(40)))
        assert loop.time() - began < PATIENCE_S + 2.0
        w.runtime.thaw(first)

    asyncio.run(with_workers(tmp_path, 2, test))


def test_many_who_want_to_know_ask_each_worker_once() -> None:
    """What it costs does not grow with who asks, and grows little with how many workers there are."""
    now, asked = 100.0, []
    members = Membership(SLOWLY, now)

    async def ask(worker_id: str) -> None:
        asked.append(worker_id)
        await asyncio.sleep(0)
        members.heard(worker_id, {}, now)

    async def main() -> None:
        nonlocal now
        glance = Glance(members, ask, SLOWLY.heartbeat_s, lambda: now)
        names = [f"w{number}" for number in range(100)]
        for name in names:
            members.add(name, now)
        now += 0.49
        await glance.at(names)
        assert asked == []
        await asyncio.gather(*(glance.at(names[:40]) for _ in range(20)))
        assert sorted(asked) == sorted(names[:40])
        await glance.at(names[:40])
        assert len(asked) == 40

    asyncio.run(main())
