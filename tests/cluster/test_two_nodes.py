"""Workers on two nodes; then one node is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.messages import Outcome
from cluster import environment
from configs import RemoraConfig, load
from tests.cluster.rig import Rig

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def nodes() -> Iterator[Any]:
    """Two nodes with room for one worker each."""
    environment.prepare()
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    cluster.add_node(**small)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def config(nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoraConfig]:
    """Settings for the cluster that we have joined as RAY_ADDRESS tells."""
    from cluster import ray_cluster

    settings = {
        "workers.runner": "toy",
        "workers.count": 2,
        "workers.num_cpus": 1,
        "engine.kv_tokens": 4096,
        "cluster.heartbeat_s": 0.1,
        "store.url": f"sqlite:{tmp_path / 's.sqlite'}",
    }
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    cluster = ray_cluster.planned(load(None, settings))
    ray_cluster.connect(cluster)
    yield cluster.config
    ray_cluster.stop(cluster)


def test_sessions_of_a_lost_node_are_answered_on_the_other(nodes: Any, config: RemoraConfig) -> None:
    """T4: a worker dies with its node; its sessions go on from the store, the others are not disturbed."""

    async def test(rig: Rig) -> None:
        await rig.ready(2, patience_s=90)
        placed = [await rig.open(f"s{number}") for number in range(4)]
        assert len({one.worker_id for one in placed}) == 2
        for one in placed:
            assert (await rig.turn(one, f"{one.session.session_id}-1")).turn == 1
        (second,) = nodes.worker_nodes
        await asyncio.to_thread(nodes.remove_node, second)
        moved = [await rig.pool.place("t", one.session.session_id, avoid=one.worker_id) for one in placed]
        assert len({one.worker_id for one in moved}) == 1
        assert sorted(one.session.epoch for one in moved) == [1, 1, 2, 2]
        for one in moved:
            end = await rig.turn(one, f"{one.session.session_id}-2")
            assert (end.outcome, end.turn, end.prompt_tokens) == (Outcome.LENGTH, 2, 44)

    async def main() -> None:
        rig = Rig(config)
        try:
            await test(rig)
        finally:
            await rig.pool.shutdown()

    asyncio.run(main())
