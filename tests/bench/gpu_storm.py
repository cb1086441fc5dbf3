"""Requests that come and are left at random on a GPU: what is left of them afterwards must be nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import torch

from actors.messages import Outcome, SamplingParams
from actors.runner.torch.overlapped import OverlappedRunner
from tests.bench.gpu_steps import write_model
from tests.bench.gpu_timing import Scale
from tests.engine.driver import Driver, Told

REQUESTS, AT_ONCE = 2000, 64
LONGEST_PROMPT, LONGEST_REPLY = 600, 80
SEED = 5


def storm_table(folder: Path, scale: Scale) -> Iterator[str]:
    """A model of the 1b shape; the engine checks its law after every message, so that a page that nobody owns ends the
    run. Told at the end: pages still in use by requests, and bytes that the device holds more than before."""
    requests, longest = (REQUESTS, LONGEST_PROMPT) if scale.seconds else (40, 40)
    write_model("1b", folder, scale)
    runner = OverlappedRunner(
        folder,
        dtype=str(scale.dtype).removeprefix("torch."),
        device=str(scale.device),
        page_size=64,
        kv_tokens=AT_ONCE * (longest + LONGEST_REPLY) // 4,
        cuda_graphs=True,
        max_running=AT_ONCE,
    )
    driver = Driver(runner, depth=1, max_step_tokens=512, max_running=AT_ONCE)
    rng = random.Random(SEED)
    _wave(driver, rng, "warm", requests // 10, longest)
    before = _held_bytes(scale)
    ends = _wave(driver, rng, "storm", requests, longest)
    after, left = _held_bytes(scale), driver.engine.snapshot()
    runner.close()
    yield "\n## Abort storm: half of the requests are left at a random step\n"
    yield "| requests | ended by themselves | aborted | preemptions | still there | their pages | device bytes more |"
    yield "|---|---|---|---|---|---|---|"
    kinds = [ends.count(Outcome.LENGTH), ends.count(Outcome.ABORT)]
    there = left.running + left.waiting
    cells = (requests, *kinds, left.preemptions, there, left.pages.request_owned, max(0, after - before))
    yield "| " + " | ".join(f"{cell:,}" for cell in cells) + " |"


def _wave(driver: Driver, rng: random.Random, name: str, requests: int, longest: int) -> list[Outcome]:
    """Runs until nothing is left; how each ended."""
    vocabulary = driver.runner.info.vocab_size
    told: list[Told] = []
    leaving: dict[str, int] = {}
    while len(told) < requests or leaving or driver.engine.has_work:
        running = sum(one.end is None for one in told)
        while len(told) < requests and running < 2 * AT_ONCE:
            key = f"{name}-{len(told)}"
            prompt = [rng.randrange(3, vocabulary) for _ in range(rng.randint(1, longest))]
            sampling = SamplingParams(max_tokens=rng.randint(1, LONGEST_REPLY), ignore_eos=True)
            told.append(driver.submit(key, prompt, sampling=sampling))
            running += 1
            if rng.random() < 0.5:
                leaving[key] = rng.randint(0, LONGEST_REPLY)
        driver.step()
        leaving = {key: steps - 1 for key, steps in leaving.items()}
        gone = [key for key, steps in leaving.items() if steps < 0]
        if gone:
            driver.abort(keys=tuple(gone))
        leaving = {key: steps for key, steps in leaving.items() if steps >= 0}
    driver.run()
    return [one.end.outcome for one in told if one.end is not None]


def _held_bytes(scale: Scale) -> int:
    if scale.device.type != "cuda":
        return 0
    torch.cuda.synchronize(scale.device)
    return torch.cuda.memory_allocated(scale.device)
