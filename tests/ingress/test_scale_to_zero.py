"""With no worker there: what the edge says, and that a request waits until one is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from configs import AutoscaleConfig
from tests.ingress.asgi import eventually, run
from tests.ingress.harness import edge
from tests.ingress.scripted import says


@pytest.mark.parametrize(
    ("autoscale", "status", "says_so"),
    [
        (AutoscaleConfig(enabled=True, min_workers=0), 200, "asleep"),
        (AutoscaleConfig(enabled=True, min_workers=1), 503, "unavailable"),
        (AutoscaleConfig(enabled=False, min_workers=0), 503, "unavailable"),
    ],
)
def test_an_edge_whose_workers_were_scaled_to_zero_is_healthy(
    autoscale: AutoscaleConfig, status: int, says_so: str
) -> None:
    """Or nobody would send it the request that brings a worker back."""

    async def check() -> None:
        async with edge(says("x")) as at:
            at.ingress.config = replace(at.ingress.config, autoscale=autoscale)
            assert (await at.client.get("/health")).json()["status"] == "ok"
            at.pool.ready = False
            health = await at.client.get("/health")
            assert (health.status, health.json()["status"]) == (status, says_so)

    run(check())


def test_a_request_without_a_session_asks_for_a_worker_and_waits_for_it() -> None:
    async def check() -> None:
        async with edge(says("x")) as at:
            at.pool.ready = False
            body = {"messages": [{"role": "user", "content": "hello"}]}
            call = at.client.start("POST", "/v1/chat/completions", body)
            await eventually(lambda: at.pool.wakes > 0)
            at.pool.ready = True
            assert (await call.whole()).status == 200

    run(check())
