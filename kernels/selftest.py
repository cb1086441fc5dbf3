"""Whether an attention backend computes right on this machine: a small batch of every kind of row, against fp64."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention import AttentionBackend, AttnBatch, AttnConfig
from kernels.reference import reference_attention

CAPS = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Largest error for inputs of N(0, 1), by dtype."""

NUM_RESERVED_PAGES = 2


@dataclass
class Problem:
    """A batch over a pool whose unused slots hold NaN, the null page apart."""

    config: AttnConfig
    batch: AttnBatch
    q: Tensor
    k_pool: Tensor
    v_pool: Tensor

    def solve(self, backend: AttentionBackend) -> Tensor:
        backend.plan(self.batch)
        return backend.forward(self.q, self.k_pool, self.v_pool, self.batch)

    def solution(self) -> Tensor:
        """float64, by the reference."""
        return reference_attention(self.q, self.k_pool, self.v_pool, self.batch, self.config)


@dataclass(frozen=True, slots=True)
class Report:
    """`error`: largest difference from the reference, NaN if the result holds one. `cap`: what is allowed."""

    passed: bool
    error: float
    cap: float
    seconds: float
    text: str


def self_test(backend: AttentionBackend) -> Report:
    """Decodes, an extended context and a fresh prompt, over permuted pages. Raises nothing: what the backend raises is
    in the report."""
    config = backend.config
    page = config.page_size
    rows = [(1, 1), (1, page + 1), (1, 2 * page), (3, page + 2), (5, 5)]
    problem = make_problem(config, rows, clean_tail=backend.needs_clean_tail)
    cap = CAPS[config.dtype]
    began = time.perf_counter()
    try:
        out = problem.solve(backend).cpu()
    except Exception as error:  # A kernel that does not compile, a library that does not fit: all of it is an answer.
        why = f"the self-test raised {type(error).__name__}: {error}".splitlines()[0]
        return Report(False, float("nan"), cap, time.perf_counter() - began, why)
    seconds = time.perf_counter() - began
    largest = float((out.double() - problem.solution().cpu()).abs().max())
    passed = largest <= cap
    verdict = "is right" if passed else "is WRONG"
    return Report(passed, largest, cap, seconds, f"{backend.name} {verdict}: error {largest:.1e}, allowed {cap:.0e}")


def make_problem(
    config: AttnConfig,
    rows: list[tuple[int, int]],
    *,
    shared_pages: int = 0,
    spare_columns: int = 2,
    clean_tail: bool = False,
    seed: int = 0,
) -> Problem:
    """`rows`: (q_len, kv_len), those with one query first. Pages are handed out in random order; all rows begin with
    the same `shared_pages`. `clean_tail`: slots of used pages that no row fills are zeros."""
    generator = torch.Generator().manual_seed(seed)
    size = config.page_size
    used = [-(-kv_len // size) for _, kv_len in rows]
    num_pages = NUM_RESERVED_PAGES + sum(used) + 3
    order = (NUM_RESERVED_PAGES + torch.randperm(num_pages - NUM_RESERVED_PAGES, generator=generator)).tolist()
    common = [order.pop() for _ in range(shared_pages)]
    table = torch.zeros(len(rows), max(used, default=0) + spare_columns, dtype=torch.int64)
    live = torch.zeros(num_pages * size, dtype=torch.bool)
    slots: list[int] = []
    for row, (q_len, kv_len) in enumerate(rows):
        pages = common[: used[row]] + [order.pop() for _ in range(used[row] - len(common))]
        table[row, : len(pages)] = torch.tensor(pages, dtype=torch.int64)
        where = [pages[position // size] * size + position % size for position in range(kv_len)]
        live[where] = True
        slots += where[kv_len - q_len :] if q_len <= kv_len else [size] * q_len
    q_lens, kv_lens = [q_len for q_len, _ in rows], [kv_len for _, kv_len in rows]
    num_decode = sum(q_len == 1 for q_len in q_lens)
    place = config.device
    q = torch.randn(sum(q_lens), config.num_q_heads, config.head_dim, generator=generator)
    zeros = torch.zeros(num_pages, dtype=torch.bool)
    zeros[0] = True
    if clean_tail:
        zeros |= live.view(num_pages, size).any(dim=1)
    k_pool, v_pool = (_pool(config, live, zeros, generator) for _ in range(2))
    batch = AttnBatch(q_lens, kv_lens, table.to(place), torch.tensor(slots, dtype=torch.int64).to(place), num_decode)
    return Problem(config, batch, q.to(config.dtype).to(place), k_pool, v_pool)


def _pool(config: AttnConfig, live: Tensor, zeros: Tensor, generator: torch.Generator) -> Tensor:
    """[num_pages, page_size, num_kv_heads, head_dim]: numbers where slots are `live`, zeros in the rest of the pages
    `zeros`, NaN elsewhere."""
    values = torch.randn(len(live), config.num_kv_heads, config.head_dim, generator=generator)
    rest = torch.where(zeros, 0.0, torch.nan).repeat_interleave(config.page_size)
    values = torch.where(live[:, None, None], values, rest[:, None, None])
    pages = values.view(len(zeros), config.page_size, config.num_kv_heads, config.head_dim)
    return pages.to(config.dtype).to(config.device)
