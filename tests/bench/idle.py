"""What many idle sessions cost those who talk: the same workloads in a server without them, and then beside them."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence

from tests.bench.figures import Figures
from tests.bench.shapes import Bench, Workload
from tests.bench.texts import random_words

IDLE_WORDS = 16
KEPT = ("decode_tok_s", "output_tok_s", "ttft_p50_s", "ttft_p99_s")


def beside_idle_sessions(decode: Workload, chat: Workload) -> Workload:
    """`decode` and `chat` alone, then beside idle sessions that each have a turn of history."""

    async def measured(bench: Bench, rng: random.Random) -> Figures:
        alone = {"decode": await decode(bench, rng), "chat": await chat(bench, rng)}
        begun = time.perf_counter()
        opened: list[str] = []
        try:
            await _open(bench, rng, opened)
            open_s = time.perf_counter() - begun
            beside = {"decode": await decode(bench, rng), "chat": await chat(bench, rng)}
        finally:
            await _each(bench.shapes.opening_at_once, bench.client.close_session, opened)
        return {**_compared(alone, beside), "idle_sessions": len(opened), "opening_s": open_s}

    return measured


def _compared(alone: dict[str, Figures], beside: dict[str, Figures]) -> Figures:
    """`..._share`: beside the idle sessions over alone; of a rate, 1 and more is as good as alone, of a time, 1 and
    less."""
    found: Figures = {}
    for workload, figures in alone.items():
        for name in (name for name in KEPT if name in figures):
            there = beside[workload][name]
            found[f"{workload}_{name}_share"] = there / figures[name]
            found[f"{workload}_{name}_alone"] = figures[name]
            found[f"{workload}_{name}_beside"] = there
    return found


async def _open(bench: Bench, rng: random.Random, opened: list[str]) -> None:
    """`opened` has, at any time, the sessions that are there to be closed."""

    async def one(text: str) -> None:
        name = f"idle-{secrets.token_hex(8)}"
        await bench.client.chat([{"role": "user", "content": text}], 1, {"id": name, "create": True})
        opened.append(name)

    texts = [random_words(rng, IDLE_WORDS) for _ in range(bench.shapes.idle_sessions)]
    await _each(bench.shapes.opening_at_once, one, texts)


async def _each(at_once: int, call: Callable[[str], Awaitable[None]], names: Sequence[str]) -> None:
    """`call` with every name, so many at the same time."""
    gate = asyncio.Semaphore(at_once)

    async def gated(name: str) -> None:
        async with gate:
            await call(name)

    await asyncio.gather(*(gated(name) for name in names))
