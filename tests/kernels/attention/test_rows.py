"""The contract of paged attention, held against every backend that runs here: kinds of rows.

Lengths are told in pages of the subject, since libraries differ in what a page may be.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.selftest import Problem, make_problem
from tests.kernels.attention.judge import check, solve
from tests.kernels.attention.subjects import Subject


def test_decodes_of_ragged_lengths(subject: Subject) -> None:
    """K3: one query each, over 1 key, a page less one, a page, a page and one, three pages, more than a split."""
    page = subject.page
    lengths = [1, page - 1, page, page + 1, 3 * page, max(300, 2 * page + 3)]
    solve(subject, [(1, length) for length in lengths])


def test_a_row_without_keys_has_a_result_of_zeros(subject: Subject) -> None:
    """Rows that fill up a graph's batch; they neither disturb the others nor make NaN."""
    problem = solve(subject, [(1, 5), (1, 0), (1, subject.page + 1), (1, 0)])
    out = problem.solve(subject.backend(problem.config))
    assert not out[1].any()
    assert not out[3].any()


def test_rows_without_queries_are_passed_over(subject: Subject) -> None:
    if subject.name == "vllm-flash-attn" and subject.library is None:
        pytest.skip("no step has such rows, and libraries are not held to them")
    solve(subject, [(1, 9), (0, 7), (4, 6), (0, subject.page), (3, 3)])


def test_only_rows_without_keys(subject: Subject) -> None:
    """The empty batch that graphs are captured with."""
    config = subject.config()
    problem = make_problem(config, [(1, 0), (1, 0)])
    assert not problem.solve(subject.backend(config)).any()


def test_fresh_prompts(subject: Subject) -> None:
    page = subject.page
    solve(subject, [(2, 2), (page - 1, page - 1), (page, page), (page + 3, page + 3)])


@pytest.mark.parametrize(
    ("q_len", "start"), [(4, "edge"), (4, "before"), ("page", "edge"), ("page", "before"), (2, "after")]
)
def test_chunks_that_extend_a_context_at_page_edges(subject: Subject, q_len: int | str, start: str) -> None:
    """P7: prompts come in chunks; they begin and end on, before and after an edge of a page."""
    page = subject.page
    count = page if q_len == "page" else int(q_len)
    begin = {"edge": page, "before": 2 * page - count, "after": page + 1}[start]
    solve(subject, [(count, begin + count)])


def test_an_extend_sees_keys_up_to_its_own_position_by_hand(subject: Subject) -> None:
    """q = 2, kv = 5: the first query sees keys 0-3, the second 0-4. With equal scores the result is their mean."""
    config = subject.config(heads=1, kv_heads=1)
    backend = subject.backend(config)
    problem = make_problem(config, [(2, 5)], clean_tail=backend.needs_clean_tail)
    problem.q.zero_()
    page = int(problem.batch.page_table[0, 0])
    for position in range(5):
        problem.v_pool[page, position] = float(2**position)
    out = problem.solve(backend).float()
    assert torch.allclose(out[0], torch.full_like(out[0], (1 + 2 + 4 + 8) / 4), rtol=1e-2)
    assert torch.allclose(out[1], torch.full_like(out[1], (1 + 2 + 4 + 8 + 16) / 5), rtol=1e-2)


def test_the_last_key_counts_and_the_next_does_not(subject: Subject) -> None:
    """The suite can fail: with a key more or less the result is another."""
    config = subject.config()
    backend = subject.backend(config)
    problem = make_problem(config, [(1, 12), (3, 9)], clean_tail=backend.needs_clean_tail)
    out = check(backend, problem)
    less = Problem(
        config, replace(problem.batch, kv_lens=[11, 8], plan=None), problem.q, problem.k_pool, problem.v_pool
    )
    difference = (less.solve(backend).float() - out.float()).abs().amax(dim=(1, 2))
    assert (difference > 1e-2).all()


def test_decodes_and_prompts_in_one_step(subject: Subject) -> None:
    """P7: prefill chunks share steps with running decodes."""
    page = subject.page
    solve(subject, [(1, 1), (1, 2 * page + 1), (1, page), (5, 5), (2, page + 2), (page + 1, 2 * page)])


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (3, 1), (8, 2), (7, 1), (16, 2), (5, 1)])
def test_query_heads_share_kv_heads(subject: Subject, heads: int, kv_heads: int) -> None:
    """Groups of 1, 2, 3, 4, 7, 8, and one KV head for all: head h reads KV head h // group in every kind of row."""
    solve(subject, [(1, 9), (1, subject.page + 1), (5, 8), (4, 4)], heads=heads, kv_heads=kv_heads)


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
def test_head_sizes(subject: Subject, dim: int) -> None:
    solve(subject, [(1, 11), (1, subject.page), (3, 10), (6, 6)], dim=dim)


def test_the_scale_is_the_models(subject: Subject) -> None:
    problem = solve(subject, [(1, 9), (4, 12), (5, 5)], scale=0.4)
    usual = replace(problem.config, scale=0.1)
    out = Problem(usual, replace(problem.batch, plan=None), problem.q, problem.k_pool, problem.v_pool)
    difference = out.solve(subject.backend(usual)).float() - problem.solve(subject.backend(problem.config)).float()
    assert difference.abs().max() > 0.05


@pytest.mark.parametrize("window", [1, 3, 7, 30, 40, 1000])
def test_a_sliding_window(subject: Subject, window: int) -> None:
    """Smaller than, equal to and larger than the context, within a page and over its edge."""
    rows = [(1, 1), (1, 7), (1, 30), (1, 40), (3, 7), (4, 40), (9, 9), (30, 30)]
    solve(subject, rows, sliding_window=window)


def test_a_window_over_splits(subject: Subject) -> None:
    """What a window has left behind lies in splits that are never read."""
    solve(subject, [(1, 600), (1, 3), (4, 530)], sliding_window=250)


@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_a_soft_cap(subject: Subject, softcap: float) -> None:
    problem = solve(subject, [(1, 12), (1, subject.page + 1), (4, 9), (5, 5)], softcap=softcap)
    if softcap < 1:
        plain = replace(problem.config, softcap=0.0)
        without = Problem(plain, replace(problem.batch, plan=None), problem.q, problem.k_pool, problem.v_pool)
        difference = (
            without.solve(subject.backend(plain)).float() - problem.solve(subject.backend(problem.config)).float()
        )
        assert difference.abs().max() > 0.05


def test_a_soft_cap_within_a_window(subject: Subject) -> None:
    solve(subject, [(1, 40), (3, 20), (9, 9)], softcap=5.0, sliding_window=8)
