"""The pool over real Ray: detached worker actors, the store's actor, and what is left when all is over."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from actors.messages import Abort, Outcome, SamplingParams, Submit
from actors.ports import WorkerGone
from actors.records import SessionUnknown, StoreError
from cluster import environment, processes
from cluster.glance import FRESH_S
from cluster.rebalance import Move
from configs import RemoraConfig, load
from tests.cluster.rig import Rig

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SETTINGS = {
    "workers.runner": "toy",
    "workers.count": 2,
    "engine.kv_tokens": 4096,
    "cluster.heartbeat_s": 0.1,
    "cluster.namespace": "remora-test",
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoraConfig]:
    """A cluster of its own; afterwards nothing of it may be left."""
    environment.prepare()
    from cluster import ray_cluster

    path = tmp_path_factory.mktemp("store") / "s.sqlite"
    settings = load(None, {**SETTINGS, "store.url": f"sqlite:{path}"})
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        cluster = ray_cluster.planned(settings)
        ray_cluster.connect(cluster)
        folder = cluster.folder
        assert folder is not None
        assert processes.using(folder)
        yield settings
        ray_cluster.stop(cluster)
    assert processes.using(folder) == []
    assert not folder.exists()
    assert not Path(f"{path}-wal").exists(), "the store's file was not closed"


def run(config: RemoraConfig, test: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        rig = Rig(config)
        try:
            await test(rig)
        finally:
            await rig.pool.shutdown()
        assert await rig.runtime.living() == []

    asyncio.run(main())


def test_a_worker_killed_with_sigkill_costs_its_sessions_nothing_but_a_prefill(config: RemoraConfig) -> None:
    """T1, T4: what was acknowledged is in the store; sessions are placed again under a higher epoch."""

    async def test(rig: Rig) -> None:
        pids = await rig.ready()
        placed = await rig.open("killed")
        assert (await rig.turn(placed, "r1")).turn == 1
        os.kill(pids[placed.worker_id], signal.SIGKILL)
        moved = await rig.pool.place("t", "killed", avoid=placed.worker_id)
        assert moved.worker_id != placed.worker_id
        assert moved.session.epoch == 2
        second = await rig.turn(moved, "r2")
        assert (second.outcome, second.turn, second.prompt_tokens) == (Outcome.LENGTH, 2, 20 + 4 + 20)
        replaced = await rig.ready()
        assert placed.worker_id not in replaced
        with pytest.raises(WorkerGone):
            await rig.ports.port(placed.worker_id).stats()

    run(config, test)


def test_a_session_moves_with_its_kv_through_the_object_store(config: RemoraConfig) -> None:
    """T5, P3: from process to process, and not by way of the pool: the next turn finds its full pages."""

    async def test(rig: Rig) -> None:
        pids = await rig.ready()
        placed = await rig.open("moved")
        await rig.turn(placed, "r1", 40)
        source = placed.worker_id
        (target,) = set(pids) - {source}
        assert await rig.pool._desk.give(Move(("t", "moved"), source, target))
        moved = await rig.pool.place("t", "moved")
        assert (moved.worker_id, moved.session.epoch) == (target, 2)
        second = await rig.turn(moved, "r2")
        assert (second.prompt_tokens, second.cached_tokens) == (20 + 40 + 20, (20 + 40 - 1) // 16 * 16)
        stats = await rig.ports.port(target).stats()
        assert stats["hibernate"]["woken_turns"] == 1  # type: ignore[index]

    run(config, test)


def test_an_owner_that_lost_its_session_cannot_commit(config: RemoraConfig) -> None:
    """T3: two workers can never both commit a turn of one session."""

    async def test(rig: Rig) -> None:
        await rig.ready()
        placed = await rig.open("stale")
        await rig.turn(placed, "r1")
        rig.store.acquire("t", "stale", owner="worker-other", expected_epoch=1)
        late = await rig.turn(placed, "r2")
        assert late.outcome is Outcome.ABORT
        assert rig.store.get("t", "stale").turns == 1

    run(config, test)


def test_the_pool_adopts_workers_that_were_started_ahead_of_it(config: RemoraConfig) -> None:
    """P1, T5: they are all that it wants, and made of what it would make them of: none is started beside them, and none
    replaced."""
    from cluster import ray_cluster
    from cluster.ray_names import NAME_PREFIX, STORE_NAME, actor_names
    from cluster.ray_store import open_remote_store
    from cluster.release import release_of

    ray_cluster.start_ahead(config, open_remote_store(config))
    ahead = {name.removeprefix(NAME_PREFIX) for name in actor_names(config.cluster.namespace) if name != STORE_NAME}
    assert len(ahead) == 2

    async def main() -> None:
        rig = Rig(config, release_of(config))
        try:
            assert set(await rig.ready()) == ahead
            placed = await rig.open("ahead")
            assert (await rig.turn(placed, "r1")).turn == 1
            status = await rig.pool.status()
            rows = status["workers"]
            assert isinstance(rows, list)
            assert {row["id"] for row in rows if not row["stale"]} == ahead
        finally:
            await rig.pool.shutdown()
        assert await rig.runtime.living() == []

    asyncio.run(main())


def test_a_new_pool_adopts_the_workers_of_the_old(config: RemoraConfig) -> None:
    """Killing the pool loses nothing: workers are detached, and know their sessions."""

    async def test(rig: Rig) -> None:
        before = await rig.ready()
        placed = await rig.open("kept")
        await rig.pool.abandon()
        other = Rig(config)
        try:
            assert await other.pool.place("t", "kept") == placed
            assert await other.ready() == before
        finally:
            await other.pool.shutdown()

    run(config, test)


def test_the_store_survives_the_death_of_its_process(config: RemoraConfig) -> None:
    """T1: commits wait for the store to come back; nothing stored is lost."""

    async def test(rig: Rig) -> None:
        await rig.ready()
        placed = await rig.open("stored")
        await rig.turn(placed, "r1")
        os.kill(store_pid(config), signal.SIGKILL)
        second = await rig.turn(placed, "r2")
        assert (second.outcome, second.turn) == (Outcome.LENGTH, 2)
        assert rig.store.get("t", "stored").turns == 2
        with pytest.raises(SessionUnknown):
            rig.store.get("t", "never opened")

    run(config, test)


def test_a_store_of_other_code_is_restarted_under_its_workers(
    config: RemoraConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T1, T5: a new version of the program finds the store's process of the one before; whoever uses it goes on."""
    from cluster import ray_store

    async def test(rig: Rig) -> None:
        await rig.ready()
        placed = await rig.open("upgraded")
        await rig.turn(placed, "r1")
        before = store_pid(config)
        with monkeypatch.context() as patch:
            patch.setattr(ray_store, "code_digest", lambda: "of another version")
            newer = await asyncio.to_thread(ray_store.open_remote_store, config)
        assert store_pid(config) != before
        assert newer.get("t", "upgraded").turns == 1
        assert (await rig.turn(placed, "r2")).turn == 2
        assert rig.store.get("t", "upgraded").turns == 2
        assert "has other code than this one, also when started anew" in caplog.text
        again = store_pid(config)
        await asyncio.to_thread(ray_store.open_remote_store, config)
        assert store_pid(config) == again

    run(config, test)


def test_a_worker_that_cannot_start_says_why(config: RemoraConfig) -> None:
    from dataclasses import replace

    broken = replace(config, engine=replace(config.engine, kv_tokens=10**16))

    async def test(rig: Rig) -> None:
        async def failed() -> str:
            while True:
                pool = (await rig.pool.status())["pool"]
                assert isinstance(pool, dict)
                if pool["last_failure"]:
                    return str(pool["last_failure"])
                await asyncio.sleep(0.05)

        assert "allocate" in await asyncio.wait_for(failed(), 100)

    run(broken, test)


def test_a_store_that_cannot_be_opened_says_why(config: RemoraConfig) -> None:
    from dataclasses import replace

    from cluster.ray_store import open_remote_store

    folder = Path(__file__).parent
    nowhere = replace(
        config,
        store=replace(config.store, url=f"sqlite:{folder}"),
        cluster=replace(config.cluster, namespace="remora-nowhere"),
    )
    with pytest.raises(StoreError, match="unable to open database file"):
        open_remote_store(nowhere)


def store_pid(config: RemoraConfig) -> int:
    """The process of the store's actor, found by the file it holds open."""
    path = Path(config.store.url.removeprefix("sqlite:"))
    (pid,) = {pid for pid in processes.using(path.parent) if pid != os.getpid()}
    return pid


def test_sessions_spread_evenly_right_after_other_requests(config: RemoraConfig) -> None:
    """P2: by what workers do now, though the last heartbeat of one tells of requests that are over."""
    slowly = replace(
        config,
        cluster=replace(config.cluster, heartbeat_s=2.0),
        workers=replace(config.workers, toy_step_s=0.01),
        engine=replace(config.engine, kv_tokens=65536),
    )

    async def test(rig: Rig) -> None:
        first, _ = await rig.ready()
        port = rig.ports.port(first)
        for number in range(6):
            sampling = SamplingParams(max_tokens=3000, ignore_eos=True)
            name = f"r{number}"
            await port.submit(
                Submit(key=name, rid=name, ingress="i", tenant="t", input_ids=(1, 2, 3), sampling=sampling)
            )

        async def load() -> int:
            return next(member.load for member in await rig.pool.members() if member.worker_id == first)

        while await load() < 6:  # noqa: ASYNC110 - a heartbeat is no event
            await asyncio.sleep(0.01)
        await port.ask(Abort(tenant="t", rids=tuple(f"r{number}" for number in range(6))))
        await asyncio.sleep(FRESH_S)
        assert await load() == 6, "a heartbeat came in between: nothing is shown"
        placed = await asyncio.gather(*(rig.open(f"even{number}") for number in range(8)))
        assert sorted(Counter(one.worker_id for one in placed).values()) == [4, 4]

    run(slowly, test)
