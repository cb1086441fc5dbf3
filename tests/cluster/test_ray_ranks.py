"""Workers of two ranks over real Ray: what they say, and what becomes of them when a rank dies or hangs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.messages import Outcome
from actors.ports import Placement
from actors.runner.torch.runner import TorchRunner
from cluster import environment, processes
from configs import RemoraConfig, load
from tests.cluster.rig import Rig
from tests.cluster.tiny_folder import save_tiny
from tests.e2e.server import wait_until
from tests.engine.driver import Driver
from tests.runner import tiny

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PROMPT = list(range(40, 60))
DEAD_S = 4.0
Within = Callable[[Awaitable[Any]], Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def within() -> Iterator[Within]:
    """Runs something on the loop that the pool lives on."""
    loop = asyncio.new_event_loop()
    yield lambda what: loop.run_until_complete(asyncio.wait_for(what, 100))
    loop.close()


@pytest.fixture(scope="module")
def rig(folder: Path, within: Within, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A pool of one worker of two ranks, on a cluster of its own; afterwards nothing of either may be left."""
    environment.prepare()
    from cluster import ray_cluster, ray_placement

    settings = load(
        None,
        {
            "model.id": str(folder),
            "model.dtype": "float32",
            "workers.tensor_parallel": 2,
            "engine.kv_tokens": 4096,
            "cluster.heartbeat_s": 0.1,
            "cluster.suspect_s": 1.0,
            "cluster.dead_s": DEAD_S,
            "cluster.namespace": "remora-ranks",
            "store.url": f"sqlite:{tmp_path_factory.mktemp('store') / 's.sqlite'}",
        },
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        cluster = ray_cluster.planned(settings)
        ray_cluster.connect(cluster)
        assert cluster.folder is not None
        rig = within(made(settings))
        yield rig
        within(rig.pool.shutdown())
        assert within(rig.runtime.living()) == []
        assert ray_placement.reserved("remora-ranks") == set()
        ray_cluster.stop(cluster)
    assert processes.using(cluster.folder) == []


async def made(config: RemoraConfig) -> Rig:
    """A rig wants to be made on the loop that its pool will live on."""
    return Rig(config)


def worker(rig: Rig, within: Within) -> dict[str, Any]:
    """The row of the one worker, once it is ready."""
    within(rig.ready(1))
    (row,) = within(rig.pool.status())["workers"]
    return dict(row)


async def until(holds: Callable[[], Awaitable[bool]], within_s: float = 60.0) -> None:
    async def look() -> None:
        while not await holds():  # noqa: ASYNC110 - these are other processes
            await asyncio.sleep(0.02)

    await asyncio.wait_for(look(), within_s)


async def replaced(rig: Rig, old: str, within_s: float = 60.0) -> None:
    """Another worker is there, ready or not."""

    async def holds() -> bool:
        ids = [row["id"] for row in (await rig.pool.status())["workers"]]  # type: ignore[attr-defined]
        return ids not in ([], [old])

    await until(holds, within_s)


async def gone(pid: int, within_s: float = 10.0) -> None:
    async def holds() -> bool:
        return not await asyncio.to_thread(os.path.exists, f"/proc/{pid}/stat")

    await until(holds, within_s)


def causes(rig: Rig, within: Within) -> list[str]:
    return [death["cause"] for death in within(rig.pool.status())["pool"]["deaths"]]


def test_a_worker_of_two_ranks_says_what_one_process_says(rig: Rig, within: Within, folder: Path) -> None:
    """I3, S1: the same greedy tokens; /v1/stats tells of the ranks."""
    row = worker(rig, within)
    assert row["tensor_parallel"] == 2
    assert "2 ranks" in row["runner"]
    (other,) = row["ranks"]
    assert other["rank"] == 1
    assert other["pid"] != row["pid"]
    placed = within(rig.open("first"))
    assert within(rig.turn(placed, "r1", 64)).outcome is Outcome.LENGTH
    _, (turn,) = rig.store.load("t", "first", placed.session.generation)
    alone = TorchRunner(folder, dtype="float32", kv_tokens=4096)
    (told,) = tiny.generate(Driver(alone), [PROMPT], 64)
    alone.close()
    assert list(turn.output_ids) == told.ids


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_with_sigkill_takes_its_worker_along_and_no_session(rig: Rig, within: Within, rank: int) -> None:
    """T1, T4: no process of it stays, another worker takes its place, and the history goes on."""
    row = worker(rig, within)
    session = f"killed {rank}"
    placed = within(rig.open(session))
    assert within(rig.turn(placed, f"{session} r1")).turn == 1
    pids = [row["pid"], row["ranks"][0]["pid"]]
    os.kill(pids[rank], signal.SIGKILL)
    within(gone(pids[1 - rank]))
    within(replaced(rig, row["id"]))
    second = within(rig.turn(moved(rig, within, session, row["id"]), f"{session} r2"))
    assert (second.outcome, second.turn, second.prompt_tokens) == (Outcome.LENGTH, 2, 20 + 4 + 20)
    if rank == 1:
        assert causes(rig, within)[-1].startswith("rank 1 is gone")


def test_a_rank_that_hangs_is_found_though_nothing_runs(rig: Rig, within: Within) -> None:
    """T4: within `cluster.dead_s`, and its process ends with the worker, frozen as it is."""
    row = worker(rig, within)
    placed = within(rig.open("frozen"))
    within(rig.turn(placed, "frozen r1"))
    frozen = row["ranks"][0]["pid"]
    os.kill(frozen, signal.SIGSTOP)
    within(replaced(rig, row["id"], DEAD_S + 4))
    within(gone(frozen))
    second = within(rig.turn(moved(rig, within, "frozen", row["id"]), "frozen r2"))
    assert (second.outcome, second.turn, second.prompt_tokens) == (Outcome.LENGTH, 2, 20 + 4 + 20)
    assert f"rank 1 has been silent for {DEAD_S} s" in causes(rig, within)[-1]


def test_a_rank_that_is_asked_to_end_drains_its_worker(rig: Rig, within: Within) -> None:
    """N70, T5: SIGTERM to any of its processes means all of it, in order."""
    row = worker(rig, within)
    os.kill(row["ranks"][0]["pid"], signal.SIGTERM)
    within(replaced(rig, row["id"]))
    worker(rig, within)
    within(gone(row["pid"]))
    assert causes(rig, within)[-1] == "drained"


def test_heads_that_cannot_be_dealt_out_are_the_cause_that_is_told(rig: Rig, within: Within) -> None:
    """A worker that cannot start says why, with the numbers, and keeps no room."""
    from cluster import ray_placement

    workers = replace(rig.config.workers, tensor_parallel=3)
    cluster = replace(rig.config.cluster, namespace="remora-three")
    store = replace(rig.config.store, url=f"{rig.config.store.url}-three")
    other = within(made(replace(rig.config, workers=workers, cluster=cluster, store=store)))

    async def failed() -> bool:
        return bool((await other.pool.status())["pool"]["last_failure"])

    within(until(failed))
    assert "2 KV heads cannot be split over 3 ranks" in within(other.pool.status())["pool"]["last_failure"]
    within(other.pool.shutdown())
    assert ray_placement.reserved("remora-three") == set()


def test_room_of_a_worker_that_died_without_a_pool_is_given_back_by_the_next(rig: Rig, within: Within) -> None:
    """Else its GPUs would be nobody's for ever."""
    from cluster import ray_placement

    row = worker(rig, within)
    within(rig.pool.abandon())
    os.kill(row["pid"], signal.SIGKILL)
    within(gone(row["ranks"][0]["pid"]))
    assert row["id"] in ray_placement.reserved("remora-ranks"), "beside what a start under way may have"
    vars(rig).update(vars(within(made(rig.config))))
    after = worker(rig, within)
    assert after["id"] != row["id"]
    wait_until(lambda: ray_placement.reserved("remora-ranks") == {after["id"]}, 60)


def moved(rig: Rig, within: Within, session: str, avoid: str) -> Placement:
    """Where the session is once there is a worker that is ready."""
    within(rig.ready(1))
    placed: Placement = within(rig.pool.place("t", session, avoid=avoid))
    assert placed.worker_id != avoid
    return placed
