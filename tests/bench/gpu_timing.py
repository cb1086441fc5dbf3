"""How long work takes on a device, and how much of it to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernels.attention import AttnConfig


@dataclass(frozen=True)
class Scale:
    """Sizes of everything that is measured. `seconds`: for how long each figure is measured at least."""

    device: torch.device
    dtype: torch.dtype
    copy_bytes: int
    square: int
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    most_kv_bytes: int
    prompts: tuple[tuple[int, int], ...]
    step_batches: tuple[int, ...]
    step_context: int
    layers: int
    seconds: float

    def config(self, heads: int, kv_heads: int, dim: int, page: int) -> AttnConfig:
        return AttnConfig(
            heads, kv_heads, dim, self.dtype, self.device, page, dim**-0.5, max_context=max(self.contexts)
        )


def sizes(*, small: bool) -> Scale:
    """`small`: a trial without a card."""
    if small:
        return Scale(
            device=torch.device("cpu"),
            dtype=torch.float32,
            copy_bytes=2**20,
            square=64,
            batches=(1, 2),
            contexts=(128,),
            most_kv_bytes=2**30,
            prompts=((1, 32),),
            step_batches=(1, 2),
            step_context=64,
            layers=1,
            seconds=0.0,
        )
    return Scale(
        device=torch.device("cuda"),
        dtype=torch.bfloat16,
        copy_bytes=2**32,
        square=8192,
        batches=(1, 4, 16, 64, 256),
        contexts=(128, 1024, 4096, 8192, 32768),
        most_kv_bytes=40 * 2**30,
        prompts=((16, 512), (8, 2048), (2, 8192), (1, 32768)),
        step_batches=(1, 8, 16, 32, 64, 128),
        step_context=2048,
        layers=0,
        seconds=0.15,
    )


def best_seconds(work: Callable[[], Any], scale: Scale) -> float:
    """Of one run among many, by the device's own clock: the median of groups that are long enough to be measured."""
    for _ in range(3 if scale.seconds else 1):
        work()
    once = _seconds_of(work, 1, scale.device)
    runs = max(1, min(1000, int(scale.seconds / 5 / max(once, 1e-6))))
    return sorted(_seconds_of(work, runs, scale.device) / runs for _ in range(5 if scale.seconds else 1))[
        2 if scale.seconds else 0
    ]


def _seconds_of(work: Callable[[], Any], runs: int, device: torch.device) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(runs):
            work()
        return time.perf_counter() - began
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    begin.record()
    for _ in range(runs):
        work()
    end.record()
    torch.cuda.synchronize(device)
    return float(begin.elapsed_time(end)) / 1000
