"""Clients that do everything at once, seeded: at the end nothing is left and the books balance."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from configs import EngineConfig
from tests.ingress.asgi import eventually, run
from tests.ingress.local import Cluster, cluster

BEHAVIOURS = ("read", "leave", "cancel", "abort", "wrong")


async def one_client(at: Cluster, dice: random.Random, number: int) -> None:
    rid = f"r{number}"
    behaviour = dice.choice(BEHAVIOURS)
    fields: dict[str, Any] = {"rid": rid, "max_tokens": dice.choice([0, 1, 5, 60]), "stream": dice.random() < 0.5}
    if dice.random() < 0.6:
        fields["session"] = {
            "id": f"s{dice.randrange(4)}",
            "on_busy": dice.choice(["reject", "queue", "supersede"]),
            "create": dice.random() < 0.1,
        }
    if behaviour == "wrong":
        fields["temperature"] = -1
    if dice.random() < 0.2:
        fields["running_timeout_s"] = 0.02
    await asyncio.sleep(dice.random() * 0.2)
    call = at.client.chat("word " * dice.randrange(1, 30), **fields)
    if behaviour in ("leave", "cancel", "abort"):
        await asyncio.sleep(dice.random() * 0.05)
    if behaviour == "leave":
        call.disconnect()
    elif behaviour == "cancel":
        call.task.cancel()
    elif behaviour == "abort":
        assert (await at.client.post("/v1/aborts", {"rid": rid})).status == 200
    await asyncio.wait({call.task})
    if behaviour in ("read", "abort", "wrong"):
        assert call.ended
        assert call.status in (200, 400, 404, 409, 429, 503)
        assert behaviour != "wrong" or call.status == 400
        if fields["stream"] and call.status == 200:
            assert call.events[-1] == "[DONE]"


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_left_and_the_books_balance(tmp_path: Path, seed: int) -> None:
    """E1, E6, K6, A7: whatever clients do, each request ends once and every page comes back."""
    dice = random.Random(seed)

    async def check() -> None:
        engine = EngineConfig(max_running=4, max_waiting=12, kv_tokens=4096, check_invariants=True)
        async with cluster(tmp_path, workers=2, step_s=0.001, engine=engine, keepalive_after_s=0.01) as at:
            for number in range(4):
                await at.client.post("/v1/sessions", {"id": f"s{number}"})
            await asyncio.gather(*(one_client(at, dice, number) for number in range(60)))
            metrics, router = at.ingress.metrics, at.ingress.router
            await eventually(lambda: metrics.open_requests == 0)
            await eventually(lambda: all(at.pages(worker)["request_owned"] == 0 for worker in at.pool.workers))
            assert not router.running
            assert router.channels.open_lines() == {"w1": 0, "w2": 0}
            text = metrics.exposition().decode()
            ended = sum(
                float(line.rsplit(" ", 1)[1])
                for line in text.split("\n")
                if line.startswith("remora_requests_ended_total")
            )
            assert ended == 60
            assert "remora_requests_received_total 60.0" in text
            assert 'reason="internal"' not in text
            for number in range(4):
                closed = await at.client.start("DELETE", f"/v1/sessions/s{number}").whole()
                assert closed.status == 200
            await eventually(lambda: all(at.pages(worker)["session_held"] == 0 for worker in at.pool.workers))

    run(check())
