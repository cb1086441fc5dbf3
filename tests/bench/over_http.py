"""Workloads against a server that runs."""

from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import dataclass

from tests.bench.client import connect
from tests.bench.figures import Figures
from tests.bench.report import shown
from tests.bench.shapes import Bench, Shapes
from tests.bench.texts import calibrate
from tests.bench.workloads import NEED_REMORA, workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to measure: `names` of workloads, each `repeats` times with prompts that follow from `seed`, a text.

    `stateless`: chat by whole conversations even where the server keeps sessions. `model` empty: the server's first.
    `rest_s`: how long the server rests before each.
    """

    url: str
    names: tuple[str, ...]
    repeats: int
    seed: str
    shapes: Shapes
    model: str = ""
    stateless: bool = False
    rest_s: float = 0.0


async def measure(asked: Asked) -> tuple[dict[str, str], dict[str, list[Figures]]]:
    """(what was measured, the figures of each repeat by workload). Raises BenchError."""
    async with connect(asked.url, asked.model) as client:
        stateless = asked.stateless or not client.is_remora
        names = asked.names if client.is_remora else tuple(name for name in asked.names if name not in NEED_REMORA)
        for name in asked.names:
            if name not in names:
                say(f"{name}: left out: {client.owner or 'this server'} has no sessions")
        sizing = await calibrate(client, random.Random(f"{asked.seed}/calibrate"))
        bench = Bench(client, sizing, asked.shapes, stateless=stateless)
        found: dict[str, list[Figures]] = {}
        for name, workload in workloads(names, asked.shapes).items():
            for number in range(1, asked.repeats + 1):
                await asyncio.sleep(asked.rest_s)
                figures = await workload(bench, random.Random(f"{asked.seed}/{name}/{number}"))
                found.setdefault(name, []).append(figures)
                main_figure, value = next(iter(figures.items()))
                say(f"{name}: repeat {number} of {asked.repeats}: {main_figure} {shown(value)}")
        mode = "http, stateless" if stateless else "http, sessions"
        return {"url": asked.url, "model": client.model, "owner": client.owner, "mode": mode}, found


def say(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)
