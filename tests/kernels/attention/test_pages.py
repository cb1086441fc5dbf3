"""The contract of paged attention, held against every backend that runs here: pages, pools and neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.selftest import Problem, make_problem
from tests.kernels.attention.judge import judge, moved, solve
from tests.kernels.attention.subjects import DEVICE, GPU, Subject

ROWS = [(1, 18), (1, 35), (5, 21), (9, 9)]


def test_rows_may_share_their_first_pages(subject: Subject) -> None:
    """K3: two sequences read the same prefix, each with a continuation of its own."""
    page = subject.page
    solve(subject, [(1, 2 * page + 5), (1, 2 * page + 1), (6, 2 * page + 7)], shared_pages=2)


@pytest.mark.parametrize("garbage", ["null", "any page"])
def test_a_page_table_may_be_wider_than_needed(subject: Subject, garbage: str) -> None:
    """Columns beyond a row's pages name some page that there is; it is not looked at."""
    config = subject.config()
    backend = subject.backend(config)
    problem = make_problem(config, ROWS, spare_columns=5, clean_tail=backend.needs_clean_tail)
    if garbage == "any page":
        table = problem.batch.page_table
        for row, kv_len in enumerate(problem.batch.kv_lens):
            used = -(-kv_len // config.page_size)
            others = torch.arange(table.shape[1] - used, device=table.device)
            table[row, used:] = 2 + others % (len(problem.k_pool) - 2)
    judge(problem.solve(backend), problem)


def test_nan_in_pages_that_no_row_has_goes_nowhere(subject: Subject) -> None:
    """K6: a free page may hold anything. Every problem's free pages are NaN; here all of their slots are looked at."""
    problem = solve(subject, ROWS)
    used = problem.batch.page_table.unique()
    free = [page for page in range(2, len(problem.k_pool)) if page not in used]
    assert free
    assert problem.k_pool[free].isnan().all()
    assert problem.v_pool[free].isnan().all()


def test_nan_behind_a_rows_last_key_goes_nowhere_or_the_backend_says_so(subject: Subject) -> None:
    """What a page held before is still in its tail. A backend that cannot bear it has `needs_clean_tail`."""
    config = subject.config()
    backend = subject.backend(config)
    problem = make_problem(config, [(1, subject.page + 1), (1, 3), (3, 5)])
    out = problem.solve(backend)
    if backend.needs_clean_tail:
        assert out.isnan().any(), "then let the backend say that tails do not matter"
    else:
        judge(out, problem)


def test_where_pages_lie_does_not_matter(subject: Subject) -> None:
    """The same rows on other pages: the same bits."""
    problem = solve(subject, ROWS)
    elsewhere = moved(problem, torch.Generator().manual_seed(5))
    backend = subject.backend(problem.config)
    assert torch.equal(problem.solve(backend), elsewhere.solve(backend))


def test_a_result_is_its_own_memory(subject: Subject) -> None:
    """The next layer's result does not overwrite this one's."""
    problem = solve(subject, ROWS)
    backend = subject.backend(problem.config)
    first = problem.solve(backend)
    kept = first.clone()
    problem.q.neg_()
    second = backend.forward(problem.q, problem.k_pool, problem.v_pool, problem.batch)
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)


def test_queries_may_be_a_slice_of_the_fused_projection(subject: Subject) -> None:
    problem = solve(subject, ROWS)
    backend = subject.backend(problem.config)
    fused = torch.randn(len(problem.q), 4 + 2 + 2, 64, device=DEVICE).to(problem.q.dtype)
    fused[:, :4] = problem.q
    strided = Problem(problem.config, problem.batch, fused[:, :4], problem.k_pool, problem.v_pool)
    assert torch.equal(problem.solve(backend), strided.solve(backend))


def test_what_is_written_is_what_is_read(subject: Subject) -> None:
    """K and V of the step go to its slots, out of slices of the fused projection; nothing else is touched, and the
    step's own attention sees them."""
    config = subject.config()
    backend = subject.backend(config)
    problem = make_problem(config, ROWS, clean_tail=backend.needs_clean_tail)
    slots = problem.batch.slots
    wanted = problem.solution()
    pools = (problem.k_pool, problem.v_pool)
    fused = torch.cat([pool.flatten(0, 1)[slots] for pool in pools], dim=1)  # [num_tokens, 4, 64]
    before = [pool.clone() for pool in pools]
    for pool in pools:
        pool.flatten(0, 1)[slots] = 0
    backend.plan(problem.batch)
    backend.write_kv(fused[:, :2], fused[:, 2:], *pools, problem.batch)
    for pool, whole in zip(pools, before, strict=True):
        assert torch.equal(pool.nan_to_num(nan=7.0), whole.nan_to_num(nan=7.0))
    out = backend.forward(problem.q, *pools, problem.batch)
    assert (out.double() - wanted).abs().max() < 0.03


def test_padding_writes_to_the_dump_page_only(subject: Subject) -> None:
    config = subject.config()
    backend = subject.backend(config)
    problem = make_problem(config, [(1, 4), (1, 0)], clean_tail=backend.needs_clean_tail)
    assert int(problem.batch.slots[1]) == config.page_size
    before = problem.k_pool.clone()
    k = torch.full((2, 2, 64), 3.0, device=DEVICE, dtype=config.dtype)
    backend.plan(problem.batch)
    backend.write_kv(k, k, problem.k_pool, problem.v_pool, problem.batch)
    changed = (problem.k_pool.nan_to_num(nan=7.0) != before.nan_to_num(nan=7.0)).any(dim=(2, 3)).nonzero().tolist()
    live = int(problem.batch.slots[0])
    assert sorted(map(tuple, changed)) == sorted([(1, 0), (live // config.page_size, live % config.page_size)])
    assert not backend.forward(problem.q, problem.k_pool, problem.v_pool, problem.batch)[1].any()


def test_a_row_alone_is_what_it_is_in_a_batch(subject: Subject) -> None:
    """I3: neighbours, their number and their lengths change no bit of a row, where the backend promises so: triton
    does. torch keeps to it for prompts, and for decodes of one length; those of several are padded to the longest."""
    rows = [(1, 300), (1, 18), (1, 700), (5, 21), (20, 40)]
    if subject.name == "torch":
        rows = [(1, 18), (5, 21), (20, 40)]
    backend = subject.backend(subject.config())
    if not backend.batch_invariant and subject.name != "torch":
        pytest.skip(
            f"{backend.description} splits keys by what is in the batch: I3 to the last bit is triton's promise"
        )
    problem = solve(subject, rows)
    backend = subject.backend(problem.config)
    together = problem.solve(backend)
    begin = 0
    for row, (q_len, _) in enumerate(rows):
        tokens = slice(begin, begin + q_len)
        begin += q_len
        assert torch.equal(_alone(problem, row, tokens).solve(backend), together[tokens])


def test_pages_lie_beyond_two_thousand_million_elements(subject: Subject) -> None:
    """A pool of 80 GB has more: an offset in 32 bits would be another page. On a CPU its memory is never touched but
    for the pages at its end."""
    if subject.name not in ("torch", "triton") and not GPU:
        pytest.skip("an adapter computes no offset")
    if subject.dtype is not torch.float16:
        pytest.skip("once is enough")
    problem = solve(subject, ROWS)
    config, small = problem.config, len(problem.k_pool)
    pages = 2**31 // problem.k_pool[0].numel() + small
    try:
        pools = [torch.empty((pages, *problem.k_pool.shape[1:]), dtype=subject.dtype, device=DEVICE) for _ in range(2)]
    except RuntimeError as error:
        pytest.skip(f"no 9 GB of addresses: {error}".splitlines()[0])
    table = torch.where(problem.batch.page_table < 2, problem.batch.page_table, pages - problem.batch.page_table)
    for pool, old in zip(pools, (problem.k_pool, problem.v_pool), strict=True):
        pool[0] = 0
        pool[pages - small + 1 : pages - 1] = old[2:].flip(0)
    far = Problem(config, replace(problem.batch, page_table=table, plan=None, lens=None), problem.q, *pools)
    backend = subject.backend(config)
    assert torch.equal(problem.solve(backend), far.solve(backend))
    far.batch.slots = torch.tensor([(pages - 2) * config.page_size] * len(problem.q), device=DEVICE)
    backend.write_kv(torch.ones_like(problem.q[:, :2]), problem.q[:, :2], *pools, far.batch)
    assert (pools[0][pages - 2, 0] == 1).all()


def _alone(problem: Problem, row: int, tokens: slice) -> Problem:
    batch = problem.batch
    alone = replace(
        batch,
        q_lens=[batch.q_lens[row]],
        kv_lens=[batch.kv_lens[row]],
        page_table=batch.page_table[row : row + 1],
        slots=batch.slots[tokens],
        num_decode=int(batch.q_lens[row] == 1),
        plan=None,
        lens=None,
    )
    return Problem(problem.config, alone, problem.q[tokens], problem.k_pool, problem.v_pool)
