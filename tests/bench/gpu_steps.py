"""Whole decode steps of real model shapes with random weights, against the time that reading weights and KV takes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from actors.engine.plan import NUM_RESERVED_PAGES, PlanItem, StepPlan
from actors.messages import SamplingParams
from actors.model.card import ModelCard
from actors.runner.sample_model import tensor_shapes
from actors.runner.torch.gpu_memory import weight_bytes
from actors.runner.torch.overlapped import OverlappedRunner
from actors.runner.torch.shards import shard_of
from tests.bench.gpu_timing import Scale, best_seconds

SHAPES: dict[str, dict[str, Any]] = {
    "1b": {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "intermediate_size": 8192},
    "8b": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 14336},
}
"""Llama 3.2 1B and Llama 3.1 8B, with the 8 KV heads and the vocabulary that both have."""
COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "eos_token_id": 2,
}
STEPS = 30
"""Steps per figure, with one in flight ahead of the one that is read."""


def step_table(name: str, folder: Path, scale: Scale) -> Iterator[str]:
    """Milliseconds of a decode step with and without graphs, its floor, tokens per second. Aim: 1.25 times the floor
    for 8b at batches up to 64."""
    card = write_model(name, folder, scale)
    rows_most, pages_each = max(scale.step_batches), -(-(scale.step_context + 4 * STEPS) // 64)
    settings: dict[str, Any] = {
        "dtype": str(scale.dtype).removeprefix("torch."),
        "device": str(scale.device),
        "page_size": 64,
        "kv_tokens": 64 * pages_each * rows_most,
    }
    bandwidth = _read_bandwidth(scale)
    seconds: dict[bool, list[float]] = {}
    for graphs in (True, False):
        runner = OverlappedRunner(folder, **settings, cuda_graphs=graphs, max_running=rows_most)
        seconds[graphs] = [_step_seconds(runner, rows, pages_each, scale) for rows in scale.step_batches]
        words = runner.info.description
        runner.close()
        yield f"\n## {name}, context {scale.step_context:,}: {words}" if graphs else f"(without graphs: {words})\n"
    yield "| batch | floor ms | with graphs ms (of floor) | without ms | tokens/s |"
    yield "|---|---|---|---|---|"
    weights = (
        weight_bytes(card, shard_of(card), scale.dtype) - card.vocab_size * card.hidden_size * scale.dtype.itemsize
    )
    for rows, quick, slow in zip(scale.step_batches, seconds[True], seconds[False], strict=True):
        kv = 2 * rows * scale.step_context * card.num_layers * card.num_kv_heads * card.head_dim * scale.dtype.itemsize
        floor = (weights + kv) / bandwidth
        figures = (
            f"{floor * 1e3:.2f} | {quick * 1e3:.2f} ({quick / floor:.2f}) | {slow * 1e3:.2f} | {rows / quick:,.0f}"
        )
        yield f"| {rows} | {figures} |"


def write_model(name: str, folder: Path, scale: Scale) -> ModelCard:
    """config.json and random weights of that shape; a trial has `scale.layers` layers and a small vocabulary."""
    config = {**COMMON, **SHAPES[name]}
    if scale.layers:
        config |= {"num_hidden_layers": scale.layers, "vocab_size": 256, "hidden_size": 256, "intermediate_size": 256}
        config |= {"num_attention_heads": 8}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    card = ModelCard.read(folder)
    tensors = {
        tensor: torch.empty(shape, dtype=scale.dtype, device=scale.device).normal_(0.0, 0.02).cpu()
        for tensor, shape in tensor_shapes(card).items()
    }
    save_file(tensors, folder / "model.safetensors")
    return card


def _read_bandwidth(scale: Scale) -> float:
    """Bytes per second that can be read: a sum writes nothing."""
    source = torch.zeros(scale.copy_bytes // 4, dtype=torch.float32, device=scale.device)
    return scale.copy_bytes / best_seconds(lambda: source.sum(), scale)


def _step_seconds(runner: OverlappedRunner, rows: int, pages_each: int, scale: Scale) -> float:
    """Per decode step of `rows` rows at the context, one step being launched while the one before it runs."""
    start = scale.step_context
    handles = [runner.launch(_plan(rows, pages_each, start, pending=False))]
    steps = STEPS if scale.seconds else 3
    for _ in range(3):  # Compiles what is left to compile.
        start += 1
        handles.append(runner.launch(_plan(rows, pages_each, start, pending=True)))
        handles.pop(0).wait()
    began = time.perf_counter()
    for _ in range(steps):
        start += 1
        handles.append(runner.launch(_plan(rows, pages_each, start, pending=True)))
        handles.pop(0).wait()
    seconds = time.perf_counter() - began
    handles.pop().wait()
    return seconds / steps


def _plan(rows: int, pages_each: int, start: int, *, pending: bool) -> StepPlan:
    """Greedy decodes; what lies in the cache before them does not matter to the time."""
    items = []
    for uid in range(rows):
        first = NUM_RESERVED_PAGES + uid * pages_each
        table = range(first, first + pages_each)
        items.append(PlanItem(uid, start, 1, [] if pending else [5], table, True, pending, SamplingParams(), 0, start))
    return StepPlan(1, tuple(items))
