"""An application over scripted workers, ready to be called."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from actors.ingress.app import build_app
from actors.ingress.core import Ingress
from actors.ingress.text import TextModel
from actors.ingress.toy_text import toy_text
from configs import AuthConfig, IngressConfig, RemoraConfig, TenantLimits, TimeoutConfig
from tests.ingress.asgi import Client
from tests.ingress.scripted import Script, ScriptedPool, ScriptedWorker, nothing


@dataclass
class Edge:
    """`worker` is the first of the pool's workers."""

    client: Client
    pool: ScriptedPool
    ingress: Ingress

    @property
    def worker(self) -> ScriptedWorker:
        return next(iter(self.pool.workers.values()))

    def ends(self) -> dict[tuple[str, str, str], int]:
        """Ended requests by (outcome, reason, stage), as /metrics counts them."""
        found = {}
        for metric in self.ingress.metrics.ended.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total") and sample.value:
                    labels = sample.labels
                    found[labels["outcome"], labels["reason"], labels["stage"]] = int(sample.value)
        return found


@asynccontextmanager
async def edge(
    script: Script = nothing,
    *,
    workers: int = 1,
    timeouts: TimeoutConfig | None = None,
    max_context: int = 8192,
    text: TextModel | None = None,
    auth: AuthConfig | None = None,
    tenants: dict[str, TenantLimits] | None = None,
    clock: Callable[[], float] = time.monotonic,
    **ingress: Any,
) -> AsyncIterator[Edge]:
    config = replace(
        RemoraConfig(),
        ingress=IngressConfig(**{"flush_s": 0.005, **ingress}),
        timeouts=timeouts or TimeoutConfig(),
        auth=auth or AuthConfig(),
        tenants=tenants or {},
    )
    pool = ScriptedPool(*(ScriptedWorker(f"w{number}", script) for number in range(1, workers + 1)))
    core = Ingress(pool, text or toy_text(max_context=max_context), config, clock=clock)
    try:
        yield Edge(Client(build_app(core)), pool, core)
    finally:
        await core.close()
