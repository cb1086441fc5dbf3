"""`python -m tests.bench.kernel`: steps of the fused CPU operator beside what the machine allows at best.

The floor of a step is the longer of two times: to read every weight once and the K/V of all its sequences, at the
bandwidth measured in this run, and to compute its products, at the best rate that a large product reaches in this run:
of int8 weights with `--quantization int8`, of numbers as they are stored in attention. Weights are random, of
SmolLM2-135M's shape. A machine that does other things at the same time makes every figure worse: the best of several
repeats counts, and the load is told.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from configs.quantization import QUANTIZATIONS
from kernels.cpu.decoder import DecoderShape, FusedDecoder, LayerTensors
from kernels.cpu.library import Library, load
from kernels.cpu.matrices import Matrices
from kernels.cpu.memory import Arena

PAGE = 16
DECODES = ((1, 128), (1, 1024), (8, 128), (8, 1024), (16, 128), (16, 1024))
PREFILLS = (128, 256, 512, 1024)
READ_BYTES = 2**28


@dataclass(frozen=True, slots=True)
class Machine:
    """What this run reached at best: bytes per second read, and operations per second of a product by weights and of
    one by numbers."""

    read: float
    compute: float
    numbers: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The best of the repeats, in seconds, and its parts by name."""

    total: float
    parts: dict[str, float]


class Steps:
    """A decoder with random weights and K/V."""

    def __init__(self, library: Library, threads: int, tokens: int, quantization: str = "") -> None:
        self.shape = shape = DecoderShape(
            hidden=576,
            inner=1536,
            layers=30,
            heads=9,
            kv_heads=3,
            head_dim=64,
            vocab=49152,
            page_size=PAGE,
            num_pages=tokens // PAGE + 2,
            norm_eps=1e-5,
            score_scale=64**-0.5,
        )
        self.decoder = FusedDecoder(library, shape, quantization=quantization)
        dtype = self.decoder.dtype
        self.size = dtype.itemsize
        self.weight_size = 1 if quantization else self.size

        def draw(*size: int) -> torch.Tensor:
            return (torch.randn(*size) * 0.02).to(dtype)

        norm = torch.ones(shape.hidden)
        heads, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        for _ in range(shape.layers):
            layer = LayerTensors(
                qkv=draw(heads + 2 * keys, shape.hidden),
                out=draw(shape.hidden, heads),
                gate=draw(shape.inner, shape.hidden),
                up=draw(shape.inner, shape.hidden),
                down=draw(shape.hidden, shape.inner),
                input_norm=norm,
                post_norm=norm,
            )
            self.decoder.add_layer(layer)
        embedding = draw(shape.vocab, shape.hidden)
        inverse = 10000.0 ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        self.decoder.open(embedding, embedding, norm, inverse, threads)
        self.decoder.kv.normal_()

    def measure(self, rows: int, context: int, count: int, repeats: int) -> Measured:
        """Steps of `rows` sequences that end at `context` tokens, the last `count` of them new."""
        pages = -(-context // PAGE)
        table = torch.randperm(self.shape.num_pages - 2)[: rows * pages].view(rows, pages) + 2
        tokens = torch.randint(0, self.shape.vocab, (rows * count,))
        wanted = torch.arange(1, rows + 1) * count - 1
        best = Measured(float("inf"), {})
        for _ in range(repeats):
            before, start = self.decoder.times(), time.perf_counter()
            self.decoder.step(tokens, [count] * rows, [context] * rows, table, wanted)
            total, after = time.perf_counter() - start, self.decoder.times()
            if total < best.total:
                best = Measured(total, {name: after[name] - before[name] for name in after})
        return best

    def weights(self) -> int:
        """Numbers in all products, the head's apart."""
        shape = self.shape
        heads = shape.heads * shape.head_dim + 2 * shape.kv_heads * shape.head_dim
        return shape.layers * shape.hidden * (heads + shape.heads * shape.head_dim + 3 * shape.inner)

    def floors(self, rows: int, context: int, count: int, machine: Machine) -> tuple[float, float]:
        """(seconds of the step, of its attention) at least."""
        shape, head = self.shape, self.shape.vocab * self.shape.hidden
        keys = shape.layers * shape.kv_heads * shape.head_dim * 2
        kv = rows * context * keys * self.size / machine.read
        seen = rows * sum(range(context - count + 1, context + 1))
        products = 4 * seen * shape.layers * shape.heads * shape.head_dim
        attention = max(kv, products / machine.numbers)
        read = (self.weights() + head) * self.weight_size / machine.read
        compute = 2 * rows * (count * self.weights() + head) / machine.compute
        return max(read, compute) + attention, attention


def read_rate(threads: int, repeats: int) -> float:
    """Bytes per second that all threads together read from memory, at best."""
    parts = np.array_split(np.ones(READ_BYTES // 8), threads)
    with ThreadPoolExecutor(threads) as pool:
        return READ_BYTES / best_of(repeats, lambda: list(pool.map(np.max, parts)))


def compute_rate(library: Library, threads: int, quantization: str, repeats: int) -> float:
    """Operations per second of a product of 512 rows by 3072 outputs of 576 inputs; rows are quantised before."""
    rows, outputs, inputs, times = 512, 3072, 576, 4
    dtype = getattr(torch, library.variant.dtype)
    arena = Arena()
    matrices = Matrices(arena, quantised=bool(quantization))
    matrix = matrices.matrix(torch.randn(outputs, inputs).to(dtype), None)
    x, to = torch.randn(rows, inputs).to(dtype), torch.empty(rows, outputs)

    def product(repeats: int) -> float:
        sizes = (rows, ctypes.byref(matrix), outputs, inputs)
        start = time.perf_counter()
        if not library.product(x.data_ptr(), *sizes, to.data_ptr(), threads, repeats):
            raise RuntimeError(f"no {threads} threads to compute with")
        return time.perf_counter() - start

    # Threads and rows are prepared in both; only products are more in one.
    seconds = min(product(times + 1) - product(1) for _ in range(repeats))
    return 2 * rows * outputs * inputs * times / seconds


def best_of(repeats: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def tell(steps: Steps, machine: Machine, repeats: int) -> None:
    print(f"{'step':<26}{'ms':>8}{'tok/s':>9}{'of floor':>10}{'attention ms':>14}{'of its floor':>14}{'share':>7}")
    prefills = ((1, length, length) for length in PREFILLS)
    for rows, context, count in (*((rows, context, 1) for rows, context in DECODES), *prefills):
        got = steps.measure(rows, context, count, max(3, repeats if count == 1 else repeats // 4))
        floor, attention_floor = steps.floors(rows, context, count, machine)
        attention = got.parts["attention"]
        name = f"decode b={rows} at {context}" if count == 1 else f"prefill {count}"
        print(
            f"{name:<26}{got.total * 1e3:>8.1f}{rows * count / got.total:>9.0f}{got.total / floor:>9.2f}x"
            f"{attention * 1e3:>14.2f}{attention / attention_floor:>13.2f}x{attention / got.total:>7.0%}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.kernel", description=__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--quantization", default="", choices=QUANTIZATIONS)
    parser.add_argument("--repeats", type=int, default=40)
    args = parser.parse_args()
    library = load(args.dtype, quantization=args.quantization)
    if isinstance(library, str):
        print(f"not measured: {library}")
        return 1
    torch.manual_seed(0)
    steps = Steps(library, args.threads, tokens=16 * 1024, quantization=args.quantization)
    rates = [compute_rate(library, args.threads, quantization, 10) for quantization in (args.quantization, "")]
    machine = Machine(read_rate(args.threads, 20), *rates)
    print(
        f"{library.variant.name}, {args.quantization or args.dtype} weights, {args.threads} threads, "
        f"load {os.getloadavg()[0]:.1f}: reads {machine.read / 1e9:.1f} GB/s, "
        f"computes {machine.compute / 1e9:.0f} Gop/s by weights, {machine.numbers / 1e9:.0f} by numbers"
    )
    tell(steps, machine, args.repeats)
    steps.decoder.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
