"""Requests that outlive every lease, time to live and clean-up: those are set to fractions of a second."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from configs import ClusterConfig, EngineConfig, SessionConfig
from tests.cluster.edge import PATIENT, Whole, whole
from tests.ingress.asgi import Call, run

STREAMS, WORKERS, TOKENS, STEP_S = 40, 1, 1500, 0.05
SHORT_S = 0.4
"""Of all clocks that look for what nobody needs any more."""
LONG_S = 10 * SHORT_S


def begin(at: Whole, number: int) -> Call:
    """Every fourth is a turn, every fourth has a name."""
    fields: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0, "stream": True, "ignore_eos": True}
    if number % 4 == 0:
        fields["session"] = {"id": f"s{number}", "create": True}
    elif number % 4 == 1:
        fields["rid"] = f"r{number}"
    return at.client.chat(f"q{number}", **fields)


async def believed(at: Whole) -> dict[str, int]:
    """How many run: by the workers, the ingress, and the pool, whose autoscaler and placement go by it."""
    rows = (await at.stats())["workers"]
    return {
        "workers": running(at),
        "ingress": at.ingress.metrics.open_requests,
        "channels": sum(at.ingress.router.channels.open_lines().values()),
        "pool": sum(row["running"] for row in rows),
    }


def running(at: Whole) -> int:
    return sum(int(str(worker.shell.stats()["running"])) for worker in at.w.runtime.workers.values())


async def offer(at: Whole) -> int:
    """One more, which there is no room for."""
    call = await at.client.chat("more", max_tokens=2, waiting_timeout_s=0.01).whole()
    return call.status


def test_long_requests_stay_counted_and_are_swept_by_nobody(tmp_path: Path) -> None:
    """E6, P2, S8, field case N19: at every look all agree on how many run, the limit holds, nothing that lives is given
    up; after the end all say none."""

    async def check() -> None:
        engine = EngineConfig(max_running=STREAMS // WORKERS, max_waiting=1, tombstone_s=SHORT_S)
        cluster = ClusterConfig(**{**PATIENT, "ingress_lease_s": 2 * SHORT_S})
        options: dict[str, Any] = {
            "engine": engine,
            "cluster": cluster,
            "sessions": SessionConfig(idle_timeout_s=SHORT_S),
        }
        async with whole(tmp_path, workers=WORKERS, step_s=STEP_S, **options) as at:
            await at.until_workers(WORKERS)
            calls = []
            for number in range(STREAMS):  # One by one: there is no room to wait in.
                calls.append(begin(at, number))
                await at.until(lambda: running(at) == len(calls))
            await at.until_so(lambda: everybody(at))
            until = time.monotonic() + LONG_S
            while time.monotonic() < until:
                assert await everybody(at)
                assert await offer(at) in (429, 503)
            assert not [call for call in calls if call.task.done()]
            report = (await at.client.post("/v1/aborts", {"all": True})).json()
            assert len(report["hit"]) == STREAMS
            for call in calls:
                await call.whole()
            assert [call.events[-2]["choices"][0]["finish_reason"] for call in calls] == ["abort"] * STREAMS
            await at.until_so(lambda: nobody(at), within_s=60.0)

    run(check(), 240.0)


async def everybody(at: Whole) -> bool:
    return set((await believed(at)).values()) == {STREAMS}


async def nobody(at: Whole) -> bool:
    return set((await believed(at)).values()) == {0}
