"""Everything but Ray in one process: HTTP application, ingress, pool, workers, store; all of it the real code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from actors.ingress.app import build_app
from actors.ingress.core import Ingress
from actors.ingress.toy_text import toy_text
from actors.ports import WorkerPort
from actors.runner.toy import ToyRunner
from cluster import serve_pool
from cluster.answers import Answer
from cluster.serve_pool import GoneWorker, ServePool
from configs import RemoraConfig
from tests.cluster.local_runtime import LocalRuntime
from tests.cluster.test_pool import World, world
from tests.ingress.asgi import Call, Client
from tests.ingress.local import LocalWorker

PATIENT = {"heartbeat_s": 0.02, "suspect_s": 5.0, "dead_s": 20.0, "start_timeout_s": 30.0, "drain_grace_s": 30.0}
"""So that a busy machine makes nobody suspect."""


@dataclass
class Whole:
    w: World
    ingress: Ingress
    client: Client

    def ends(self) -> dict[tuple[str, str, str], int]:
        """Ended requests by (outcome, reason, stage), as /metrics counts them."""
        samples = [sample for metric in self.ingress.metrics.ended.collect() for sample in metric.samples]
        return {
            (sample.labels["outcome"], sample.labels["reason"], sample.labels["stage"]): int(sample.value)
            for sample in samples
            if sample.name.endswith("_total") and sample.value
        }

    async def turn(self, session: str, words: str = "hello", **fields: Any) -> Call:
        """A turn to its end, sent again as long as the queue is full."""
        while True:
            call = await self.client.chat(words, session={"id": session, "create": False}, **fields).whole()
            if call.status != 429:
                return call
            assert int(call.headers["retry-after"]) >= 1
            await asyncio.sleep(0.02)

    async def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get("/v1/stats")).json()
        return found

    async def workers(self) -> dict[str, str]:
        """State by id."""
        return await self.w.states()

    async def until(self, holds: Callable[[], object], within_s: float = 30.0) -> None:
        async def look() -> None:
            while not holds():  # noqa: ASYNC110 - what a test waits for has no event
                await asyncio.sleep(0.005)

        await asyncio.wait_for(look(), within_s)

    async def until_so(self, holds: Callable[[], Awaitable[bool]], within_s: float = 30.0) -> None:
        async def look() -> None:
            while not await holds():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

        await asyncio.wait_for(look(), within_s)

    async def until_workers(self, count: int, within_s: float = 40.0) -> list[str]:
        """Wait until so many are there and ready, and no other."""

        async def look() -> list[str]:
            while True:
                states = await self.w.states()
                if list(states.values()) == ["ready"] * count:
                    return list(states)
                await asyncio.sleep(0.005)

        return await asyncio.wait_for(look(), within_s)


@asynccontextmanager
async def whole(
    folder: Path, *, workers: int = 1, kv_tokens: int = 65536, step_s: float = 0.0, starts: bool = True, **changed: Any
) -> AsyncIterator[Whole]:
    """`changed`: sections of the settings. `starts` False: workers begin to start and do not get ready until
    `runtime.starts` is set."""

    def change(config: RemoraConfig) -> RemoraConfig:
        return replace(config, **{"cluster": replace(config.cluster, **PATIENT), **changed})

    def prepare(runtime: LocalRuntime) -> None:
        runtime.step_s = step_s
        runtime.make_runner = lambda **options: ToyRunner(**{**options, "kv_tokens": kv_tokens, "max_context": 8192})
        if not starts:
            runtime.starts.clear()

    async with world(folder, workers=workers, change=change, prepare=prepare) as made:

        async def call(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
            return await serve_pool.answer(made.pool, method, args, kwargs)

        def port(worker_id: str) -> WorkerPort:
            worker = made.runtime.workers.get(worker_id)
            return GoneWorker(worker_id) if worker is None else LocalWorker(worker.shell)

        ingress = Ingress(ServePool(call, port), toy_text(max_context=8192), made.config)
        try:
            yield Whole(made, ingress, Client(build_app(ingress)))
        finally:
            await ingress.close()
            assert [worker.shell.loop_error for worker in made.runtime.workers.values()] == [None] * len(
                made.runtime.workers
            )
