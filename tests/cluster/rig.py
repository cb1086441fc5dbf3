"""A pool on this process's event loop, over worker actors of the Ray cluster that this process is connected to."""

from __future__ import annotations

import asyncio

from actors.messages import Finished, SamplingParams, SessionMode, Submit, TurnOf
from actors.ports import Placement, WorkerPort
from cluster.release import Release
from configs import RemoraConfig


class Rig:
    """Make it inside a running loop. Ray is imported only then. `release`: what its workers are to be made of."""

    def __init__(self, config: RemoraConfig, release: Release | None = None) -> None:
        from cluster.pool import Pool
        from cluster.ray_runtime import RayRuntime, WorkerPorts
        from cluster.ray_store import open_remote_store

        self.config = config
        self.store = open_remote_store(config)
        self.runtime = RayRuntime(config, self.store)
        self.pool = Pool(self.runtime, self.store, config, release=release)
        self.ports = WorkerPorts(config.cluster.namespace)
        self.pool.start()

    async def ready(self, count: int = 2, patience_s: float = 60.0) -> dict[str, int]:
        """Process ids by worker, once `count` are ready."""

        async def look() -> dict[str, int]:
            while True:
                rows = (await self.pool.status())["workers"]
                assert isinstance(rows, list)
                if [row["state"] for row in rows] == ["ready"] * count:
                    return {row["id"]: row["pid"] for row in rows}
                await asyncio.sleep(0.05)

        return await asyncio.wait_for(look(), patience_s)

    async def open(self, session_id: str) -> Placement:
        return await self.pool.open_session(
            "t", session_id, mode=SessionMode.TREE, idle_timeout_s=None, capacity_tokens=None
        )

    async def turn(self, placed: Placement, rid: str, max_tokens: int = 4) -> Finished:
        port = self.ports.port(placed.worker_id)
        record = placed.session
        await port.submit(
            Submit(
                key=rid,
                rid=rid,
                ingress="i",
                tenant="t",
                input_ids=tuple(range(40, 60)),
                sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
                turn=TurnOf(session_id=record.session_id, generation=record.generation, epoch=record.epoch),
            )
        )
        return await asyncio.wait_for(finished(port, rid), 100)


async def finished(port: WorkerPort, key: str) -> Finished:
    while True:
        for event in await port.poll("i"):
            if isinstance(event, Finished) and event.key == key:
                return event
