"""More requests than fit, at the application over real workers: a slow placement, a full house, a burst."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from actors.messages import Reason
from configs import EngineConfig
from tests.ingress.asgi import eventually, run
from tests.ingress.harness import edge
from tests.ingress.local import cluster
from tests.ingress.scripted import says
from tests.ingress.test_with_workers import chat, idle, text_of

HEALTH_S = 1.0
"""Of this process's own time, so that a busy machine fails nobody."""
BUSY = 4
"""By how much a machine that runs other tests at the same time may be slower, where time passes."""


def test_opening_without_an_id_makes_a_new_one_each_time(tmp_path: Path) -> None:
    """S14, S13, session case B01."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            made = [(await at.client.post("/v1/sessions")).json()["id"] for _ in range(20)]
            assert len(set(made)) == 20
            assert all(made)
            for name in made[:2]:
                call = await chat(at, f"I am {name}", session={"id": name}).whole()
                assert call.status == 200
            for name in made:
                assert (await at.client.get(f"/v1/sessions/{name}")).json()["turns"] == (name in made[:2])

    run(check())


def test_leaving_while_the_first_placement_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A1, S6, E1: field case N07: clients that leave while their session is being placed are never dispatched; the
    first turn runs, and the next one continues from it."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            may_place, place = asyncio.Event(), at.pool.place
            waiting = 0

            async def slowly(*args: Any, **kwargs: Any) -> Any:
                nonlocal waiting
                waiting += 1
                await may_place.wait()
                return await place(*args, **kwargs)

            await at.client.post("/v1/sessions", {"id": "s"})
            at.ingress.router.forget("default", "s")
            monkeypatch.setattr(at.pool, "place", slowly)
            first = chat(at, "one", session={"id": "s"})
            await eventually(lambda: waiting)
            queued = {"id": "s", "on_busy": "queue"}
            others = [chat(at, f"other {number}", session=queued, stream=number % 2 > 0) for number in range(5)]
            await eventually(lambda: len(at.ingress.router.running) == 6)
            for call in others:
                call.disconnect()
            await asyncio.wait({call.task for call in others}, timeout=60)
            assert all(call.task.done() for call in others)
            assert at.ingress.metrics.open_requests == 1
            may_place.set()
            await first.whole()
            last = await chat(at, "two", session=queued).whole()
            usage = [call.json()["usage"] for call in (first, last)]
            new = len("\nuser: two\nassistant: ")
            assert usage[1]["prompt_tokens"] == usage[0]["total_tokens"] + new
            assert (await at.client.get("/v1/sessions/s")).json()["turns"] == 2
            await idle(at)
            ended = {
                (sample.labels["reason"], sample.labels["stage"]): sample.value
                for metric in at.ingress.metrics.ended.collect()
                for sample in metric.samples
                if sample.name.endswith("_total") and sample.labels["outcome"] == "abort"
            }
            assert ended == {(Reason.CLIENT_DISCONNECT.value, "routing"): 5}

    run(check())


def test_parked_requests_wait_without_asking_all_the_time() -> None:
    """P3, C1: field case N45: two hundred wait for a worker. They ask once in a while, health is answered all the
    time, and all of them go when there is room."""

    async def check() -> None:
        async with edge(says("ok")) as at:
            at.pool.ready = False
            asked, members = 0, at.pool.members

            async def counted() -> Any:
                nonlocal asked
                asked += 1
                return await members()

            at.pool.members = counted  # type: ignore[method-assign]
            calls = [at.client.chat(f"request {number}") for number in range(200)]
            await eventually(lambda: len(at.ingress.router.running) == 200)
            asked, began = 0, time.monotonic()
            for _ in range(5):
                before = time.process_time()
                assert (await at.client.get("/health")).status in (200, 503)
                assert time.process_time() - before < HEALTH_S
                await asyncio.sleep(0.05)
            assert asked <= 200 * (time.monotonic() - began) * 2, "twice a second each would be too often already"
            assert at.worker.submits == []
            at.pool.ready = True
            for call in calls:
                await call.whole()
            assert {call.status for call in calls} == {200}
            assert len(at.worker.submits) == 200

    run(check())


def test_a_burst_is_answered_and_health_meanwhile(tmp_path: Path) -> None:
    """I1, E1, K6: field case N68 (the engine's part: one worker, and no pool to declare it lost): 1,280 requests at
    once; all are answered, and health is, meanwhile."""

    async def check() -> None:
        engine = EngineConfig(max_running=64, max_waiting=2000)
        async with cluster(tmp_path, engine=engine) as at:
            calls = [chat(at, f"{number}" * 20, max_tokens=2) for number in range(1280)]
            slowest = 0.0
            while not all(call.task.done() for call in calls):
                before = time.process_time()
                assert (await at.client.get("/health")).status == 200
                slowest = max(slowest, time.process_time() - before)
                await asyncio.sleep(0.02)
            assert slowest < HEALTH_S * BUSY
            assert all(len(text_of(call)) == 2 for call in calls)
            await idle(at)

    run(check(), limit_s=100.0)
