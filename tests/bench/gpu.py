"""What a GPU makes of it: `python -m tests.bench.gpu` prints every table of CUDA figures in one go.

Kernels against what the card can do (copy bandwidth, matrix products, torch's own attention), then whole steps of real
model shapes with random weights against the time that their weights and KV take to be read. `--cpu` runs the same code
on a small scale without a card, to see that it runs: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

if "--cpu" in sys.argv:
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
import torch.nn.functional as F

from kernels.attention import AttentionBackend, AttnBatch
from kernels.selection import BACKENDS, problems_of
from kernels.selftest import self_test
from tests.bench.gpu_steps import SHAPES, step_table
from tests.bench.gpu_storm import storm_table
from tests.bench.gpu_timing import Scale, best_seconds, sizes

GIB = 2**30
HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 64
"""Llama 3.1 8B's attention."""


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cpu", action="store_true", help="a trial of the script itself, without a card")
    arguments.add_argument("--only", choices=["kernels", "steps", "storm"], help="leave the others out")
    arguments.add_argument("--shapes", default="1b,8b", help=f"of {', '.join(SHAPES)}")
    asked = arguments.parse_args()
    if not asked.cpu and not torch.cuda.is_available():
        print("there is no GPU here (--cpu tries the script without one)", file=sys.stderr)
        return 1
    scale = sizes(small=asked.cpu)
    for line in heading(scale):
        print(line, flush=True)
    if asked.only in (None, "kernels"):
        for line in [*decode_table(scale), *prompt_table(scale)]:
            print(line, flush=True)
    if asked.only in (None, "steps"):
        for name in asked.shapes.split(","):
            with tempfile.TemporaryDirectory(prefix="remora-gpu-") as folder:
                for line in step_table(name, Path(folder), scale):
                    print(line, flush=True)
    if asked.only in (None, "storm"):
        with tempfile.TemporaryDirectory(prefix="remora-gpu-") as folder:
            for line in storm_table(Path(folder), scale):
                print(line, flush=True)
    return 0


def heading(scale: Scale) -> Iterator[str]:
    """The card, and what it can do at best: measured, since data sheets promise more."""
    name = torch.cuda.get_device_name() if scale.device.type == "cuda" else "CPU (a trial: figures mean nothing)"
    bandwidth, products = copy_bandwidth(scale), matrix_products(scale)
    yield f"{name}; torch {torch.__version__}, CUDA {torch.version.cuda}"
    yield f"copy: {bandwidth / 1e9:,.0f} GB/s read and written; products: {products / 1e12:,.1f} TFLOP/s"
    for kind in BACKENDS:
        problems = problems_of(kind, scale.config(HEADS, KV_HEADS, DIM, PAGE))
        yield f"{kind}: {'; '.join(problems) if problems else self_test(_backend(kind, scale)).text}"


def copy_bandwidth(scale: Scale) -> float:
    """Bytes per second, those read and those written together."""
    source = torch.zeros(scale.copy_bytes, dtype=torch.uint8, device=scale.device)
    target = torch.empty_like(source)
    return 2 * scale.copy_bytes / best_seconds(lambda: target.copy_(source), scale)


def matrix_products(scale: Scale) -> float:
    """FLOP per second of a square product in the model's dtype."""
    n = scale.square
    a, b = (torch.randn(n, n, device=scale.device).to(scale.dtype) for _ in range(2))
    return 2 * n**3 / best_seconds(lambda: a @ b, scale)


# -- kernels -----------------------------------------------------------------------------------------------------------


def decode_table(scale: Scale) -> Iterator[str]:
    """GB/s of keys and values read, and what part of the copy bandwidth that is. Aim: 75 % from batch 16 and context
    4k on."""
    bandwidth = copy_bandwidth(scale)
    kinds = [kind for kind in BACKENDS if not problems_of(kind, scale.config(HEADS, KV_HEADS, DIM, PAGE))]
    yield "\n## Decode: GB/s of K and V (share of the copy bandwidth)\n"
    yield f"| batch | context | {' | '.join(kinds)} |"
    yield "|---|---|" + "---|" * len(kinds)
    for rows in scale.batches:
        for context in scale.contexts:
            read = 2 * rows * context * KV_HEADS * DIM * scale.dtype.itemsize
            if read > scale.most_kv_bytes:
                continue
            cells = [read / _decode_seconds(kind, rows, context, scale) for kind in kinds]
            shown = " | ".join(f"{rate / 1e9:,.0f} ({rate / bandwidth:.0%})" for rate in cells)
            yield f"| {rows} | {context:,} | {shown} |"


def prompt_table(scale: Scale) -> Iterator[str]:
    """TFLOP/s of causal prompts, against torch's flash attention over the same numbers without pages. Aim: 60 %."""
    kinds = [kind for kind in BACKENDS if not problems_of(kind, scale.config(HEADS, KV_HEADS, DIM, PAGE))]
    yield "\n## Fresh prompts: TFLOP/s (share of torch's flash attention, dense)\n"
    yield f"| batch | tokens | dense | {' | '.join(kinds)} |"
    yield "|---|---|---|" + "---|" * len(kinds)
    for rows, length in scale.prompts:
        flop = 2 * 2 * rows * HEADS * DIM * length * (length + 1) / 2
        dense = flop / _dense_seconds(rows, length, scale)
        cells = [flop / _prompt_seconds(kind, rows, length, scale) for kind in kinds]
        shown = " | ".join(f"{rate / 1e12:,.1f} ({rate / dense:.0%})" for rate in cells)
        yield f"| {rows} | {length:,} | {dense / 1e12:,.1f} | {shown} |"


def _backend(kind: str, scale: Scale) -> AttentionBackend:
    return BACKENDS[kind]()(scale.config(HEADS, KV_HEADS, DIM, PAGE))


def _decode_seconds(kind: str, rows: int, context: int, scale: Scale) -> float:
    return _seconds(_backend(kind, scale), [(1, context)] * rows, scale)


def _prompt_seconds(kind: str, rows: int, length: int, scale: Scale) -> float:
    return _seconds(_backend(kind, scale), [(length, length)] * rows, scale)


def _seconds(backend: AttentionBackend, rows: list[tuple[int, int]], scale: Scale) -> float:
    """One layer's attention. Pages lie anywhere, as in a cache that has been in use."""
    config = backend.config
    used = [-(-kv_len // config.page_size) for _, kv_len in rows]
    order = 2 + torch.randperm(sum(used))
    table = torch.zeros(len(rows), max(used), dtype=torch.int64)
    begin = 0
    for row, pages in enumerate(used):
        table[row, :pages] = order[begin : begin + pages]
        begin += pages
    pools = [_noise((2 + sum(used), config.page_size, config.num_kv_heads, config.head_dim), scale) for _ in range(2)]
    tokens = sum(q_len for q_len, _ in rows)
    q = _noise((tokens, config.num_q_heads, config.head_dim), scale)
    batch = AttnBatch(
        q_lens=[q_len for q_len, _ in rows],
        kv_lens=[kv_len for _, kv_len in rows],
        page_table=table.to(scale.device),
        slots=torch.zeros(tokens, dtype=torch.int64, device=scale.device),
        num_decode=sum(q_len == 1 for q_len, _ in rows),
    )
    backend.plan(batch)
    return best_seconds(lambda: backend.forward(q, pools[0], pools[1], batch), scale)


def _dense_seconds(rows: int, length: int, scale: Scale) -> float:
    q, k, v = (_noise((rows, HEADS, length, DIM), scale) for _ in range(3))
    return best_seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), scale)


def _noise(shape: tuple[int, ...], scale: Scale) -> torch.Tensor:
    return torch.empty(shape, dtype=scale.dtype, device=scale.device).normal_()


if __name__ == "__main__":
    sys.exit(main())
