"""Many clients at once: half of them leave; or all have the same system prompt."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

from tests.bench.client import Message
from tests.bench.figures import BenchError, Figures, Reply, crowd_figures, gap_figures
from tests.bench.shapes import Bench
from tests.bench.texts import fresh_prompt, random_words

FREE_WITHIN_S = 60.0
LOOK_EVERY_S = 0.02


async def abort_storm(bench: Bench, rng: random.Random) -> Figures:
    """All begin at the same time; each second one leaves at a random moment, whatever its request is at.

    The figures are of those who stay, and of Remora's pages: how long after the last has gone requests still hold any.
    """
    shapes = bench.shapes
    prompts = [fresh_prompt(rng, shapes.decode_prompt_words) for _ in range(shapes.storm_clients)]
    patience = [rng.uniform(0, shapes.storm_leave_s) if number % 2 else None for number in range(len(prompts))]
    calls = [_until(bench, prompt, after_s) for prompt, after_s in zip(prompts, patience, strict=True)]
    found = await asyncio.gather(*calls)
    stayed = [reply for reply, after_s in zip(found, patience, strict=True) if reply is not None and after_s is None]
    figures = {**gap_figures(stayed), "clients": len(found), "left": sum(reply is None for reply in found)}
    if bench.client.is_remora:
        figures["pages_free_after_s"] = await _pages_free(bench)
    return figures


async def _until(bench: Bench, prompt: list[Message], after_s: float | None) -> Reply | None:
    """The reply; None when the client left before it was complete."""
    try:
        return await asyncio.wait_for(bench.client.chat(prompt, bench.shapes.storm_tokens), after_s)
    except asyncio.TimeoutError:  # another class than the built-in one before Python 3.11
        return None


async def _pages_free(bench: Bench) -> float:
    """Seconds until no request holds a page. Raises BenchError when some are never given back."""
    begun = time.perf_counter()
    while held := await bench.client.pages_of_requests():
        if time.perf_counter() - begun > FREE_WITHIN_S:
            raise BenchError(f"{held} pages are still held {FREE_WITHIN_S:.0f} s after everybody has gone")
        await asyncio.sleep(LOOK_EVERY_S)
    return time.perf_counter() - begun


async def shared_prompt(bench: Bench, rng: random.Random) -> Figures:
    """One request with a long system prompt that nobody had before, then all others with the same, together."""
    shapes = bench.shapes
    system: Message = {"role": "system", "content": random_words(rng, bench.sizing.words_of(shapes.shared_tokens))}
    asked = [
        [system, {"role": "user", "content": random_words(rng, shapes.decode_prompt_words)}]
        for _ in range(shapes.shared_requests)
    ]
    first = await bench.client.chat(asked[0], shapes.shared_reply_tokens)
    others: Sequence[Reply] = await asyncio.gather(
        *(bench.client.chat(messages, shapes.shared_reply_tokens) for messages in asked[1:])
    )
    return {**crowd_figures(others), "first_ttft_s": first.ttft_s}
