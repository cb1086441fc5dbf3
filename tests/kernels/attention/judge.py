"""Whether a result is right: close to fp64 as its dtype allows, and no worse than twice what plain arithmetic is."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kernels.attention import AttentionBackend
from kernels.selftest import CAPS, Problem, make_problem
from tests.kernels.attention.subjects import Subject

SLACK = {torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def check(backend: AttentionBackend, problem: Problem) -> Tensor:
    """Returns the result."""
    out = problem.solve(backend)
    judge(out, problem)
    return out


def judge(out: Tensor, problem: Problem) -> None:
    dtype = problem.config.dtype
    assert out.dtype is dtype
    assert out.shape == problem.q.shape
    assert torch.isfinite(out).all(), "nothing beyond a row's length may get into its result"
    wanted, got = problem.solution(), out.double()
    error = float((got - wanted).abs().max()) if got.numel() else 0.0
    plain = float((naive(problem).double() - wanted).abs().max()) if got.numel() else 0.0
    assert error <= CAPS[dtype]
    assert error <= 2 * plain + SLACK[dtype], f"plain arithmetic errs by {plain:.1e}, this by {error:.1e}"
    if float(wanted.norm()):
        cosine = float(torch.nn.functional.cosine_similarity(got.flatten(), wanted.flatten(), dim=0))
        assert cosine > 0.9999


def naive(problem: Problem) -> Tensor:
    """Attention in the problem's own dtype, row by row, as one would write it down."""
    config, batch = problem.config, problem.batch
    out = torch.zeros_like(problem.q)
    begin = 0
    for row, (q_len, kv_len) in enumerate(zip(batch.q_lens, batch.kv_lens, strict=True)):
        tokens = slice(begin, begin + q_len)
        begin += q_len
        if not q_len or not kv_len:
            continue
        positions = torch.arange(kv_len, device=problem.q.device)
        pages = batch.page_table[row, positions // config.page_size]
        k, v = (pool[pages, positions % config.page_size] for pool in (problem.k_pool, problem.v_pool))
        k, v = (kept.repeat_interleave(config.group, dim=1).transpose(0, 1) for kept in (k, v))
        scores = problem.q[tokens].transpose(0, 1) @ k.transpose(1, 2) * config.scale
        if config.softcap:
            scores = config.softcap * torch.tanh(scores / config.softcap)
        queries = positions[kv_len - q_len :, None]
        seen = positions[None, :] <= queries
        if config.sliding_window is not None:
            seen &= positions[None, :] > queries - config.sliding_window
        weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
        out[tokens] = (weights @ v).transpose(0, 1)
    return out


def solve(
    subject: Subject, rows: list[tuple[int, int]], *, heads: int = 4, kv_heads: int = 2, dim: int = 64, **fields: object
) -> Problem:
    """Compute these rows and judge the result; returns the problem."""
    shared = int(str(fields.pop("shared_pages", 0)))
    config = subject.config(heads, kv_heads, dim, **fields)
    backend = subject.backend(config)
    problem = make_problem(config, rows, shared_pages=shared, clean_tail=backend.needs_clean_tail)
    check(backend, problem)
    return problem


def moved(problem: Problem, generator: torch.Generator) -> Problem:
    """The same rows on other pages."""
    pages = len(problem.k_pool)
    to = torch.cat((torch.arange(2), torch.randperm(pages - 2, generator=generator) + 2)).to(problem.q.device)
    k_pool, v_pool = torch.empty_like(problem.k_pool), torch.empty_like(problem.v_pool)
    k_pool[to], v_pool[to] = problem.k_pool, problem.v_pool
    batch = replace(problem.batch, page_table=to[problem.batch.page_table], plan=None, lens=None)
    return Problem(problem.config, batch, problem.q, k_pool, v_pool)
