"""The torch backend against fp64 attention that walks the pages one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from kernels.attention import AttnBatch, AttnConfig
from kernels.reference import reference_attention
from kernels.torch_ref import TorchAttention

CAPS = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Largest error for inputs of N(0, 1), against fp64 on the same rounded inputs."""


@dataclass
class Case:
    """A batch over a pool whose unused slots are NaN, page 0 (all zeros) apart."""

    config: AttnConfig
    batch: AttnBatch
    q: Tensor
    k_pool: Tensor
    v_pool: Tensor

    def run(self) -> Tensor:
        backend = TorchAttention(self.config)
        backend.plan(self.batch)
        return backend.forward(self.q, self.k_pool, self.v_pool, self.batch)

    def check(self) -> None:
        out = self.run()
        wanted = reference_attention(self.q, self.k_pool, self.v_pool, self.batch, self.config)
        assert out.dtype is self.config.dtype
        assert out.shape == self.q.shape
        assert torch.isfinite(out).all(), "nothing beyond a row's length may get into its result"
        assert (out.double() - wanted).abs().max() <= CAPS[self.config.dtype]


def config(heads: int = 4, kv_heads: int = 2, dim: int = 64, page: int = 16, **fields: object) -> AttnConfig:
    base = AttnConfig(heads, kv_heads, dim, torch.float32, torch.device("cpu"), page, dim**-0.5)
    return replace(base, **fields)  # type: ignore[arg-type]


def make_case(config: AttnConfig, rows: list[tuple[int, int]], *, shared_pages: int = 0, seed: int = 0) -> Case:
    """`rows`: (q_len, kv_len). Pages are handed out in random order; all rows begin with the same `shared_pages`."""
    generator = torch.Generator().manual_seed(seed)
    size = config.page_size
    used = [-(-kv_len // size) for _, kv_len in rows]
    num_pages = 2 + sum(used) + 3
    order = (2 + torch.randperm(num_pages - 2, generator=generator)).tolist()
    common = [order.pop() for _ in range(shared_pages)]
    table = torch.zeros(len(rows), max(used) + 2, dtype=torch.int64)
    k_pool = torch.full((num_pages, size, config.num_kv_heads, config.head_dim), torch.nan, dtype=config.dtype)
    v_pool = torch.full_like(k_pool, torch.nan)
    k_pool[0], v_pool[0] = 0, 0
    slots: list[int] = []
    for row, (q_len, kv_len) in enumerate(rows):
        pages = common[: used[row]] + [order.pop() for _ in range(used[row] - len(common))]
        table[row, : len(pages)] = torch.tensor(pages)
        for position in range(kv_len):
            page, offset = pages[position // size], position % size
            if k_pool[page, offset].isnan().any():
                shape = (config.num_kv_heads, config.head_dim)
                k_pool[page, offset] = torch.randn(shape, generator=generator).to(config.dtype)
                v_pool[page, offset] = torch.randn(shape, generator=generator).to(config.dtype)
        slots += [pages[p // size] * size + p % size for p in range(kv_len - q_len, kv_len)]
    q_lens, kv_lens = [q for q, _ in rows], [kv for _, kv in rows]
    q = torch.randn(sum(q_lens), config.num_q_heads, config.head_dim, generator=generator).to(config.dtype)
    num_decode = sum(q_len == 1 for q_len in q_lens)
    batch = AttnBatch(q_lens, kv_lens, table, torch.tensor(slots), num_decode)
    return Case(config, batch, q, k_pool, v_pool)


@pytest.mark.parametrize("dtype", CAPS)
@pytest.mark.parametrize("page", [1, 16, 64])
def test_a_mixed_step_equals_the_reference_whatever_lies_in_unused_slots(page: int, dtype: torch.dtype) -> None:
    """K3, K6: permuted pages; free pages and tails of last pages are NaN; decodes, extends and fresh prompts."""
    rows = [(1, 1), (1, page), (1, page + 1), (1, 3 * page + 2), (1, 2), (5, 5), (7, page + 9), (page + 2, page + 2)]
    make_case(config(page=page, dtype=dtype), rows).check()


@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 7, 8])
def test_query_heads_share_kv_heads(ratio: int) -> None:
    """Grouped-query attention: query head h reads KV head h // ratio, in decode, extend and fresh prompt alike."""
    make_case(config(heads=2 * ratio, kv_heads=2), [(1, 20), (1, 33), (6, 30), (9, 9)]).check()


def test_one_kv_head_serves_all() -> None:
    make_case(config(heads=5, kv_heads=1), [(1, 17), (4, 18), (3, 3)]).check()


@pytest.mark.parametrize("dtype", CAPS)
@pytest.mark.parametrize("dim", [64, 80, 96, 128])
def test_head_dims(dim: int, dtype: torch.dtype) -> None:
    make_case(config(dim=dim, dtype=dtype), [(1, 40), (1, 16), (3, 35), (8, 8)]).check()


def test_the_scale_is_the_models() -> None:
    case = make_case(config(scale=0.5), [(1, 9), (4, 12), (5, 5)])
    case.check()
    usual = Case(replace(case.config, scale=64**-0.5), case.batch, case.q, case.k_pool, case.v_pool)
    assert not torch.allclose(case.run(), usual.run(), atol=1e-2)


@pytest.mark.parametrize(("q_len", "kv_len"), [(4, 16), (4, 20), (4, 18), (16, 32), (17, 33), (15, 32), (2, 64)])
def test_extends_that_begin_and_end_at_page_edges(q_len: int, kv_len: int) -> None:
    make_case(config(), [(q_len, kv_len)]).check()


def test_rows_may_share_their_first_pages() -> None:
    """K3: two sequences read the same prefix pages, each with a continuation of its own."""
    make_case(config(page=4), [(1, 13), (1, 10), (6, 15)], shared_pages=2).check()


def test_an_extend_sees_keys_up_to_its_own_position_by_hand() -> None:
    """q = 2, kv = 5: the first query sees keys 0-3, the second 0-4. With equal scores the result is their mean."""
    plain = config(heads=1, kv_heads=1, dim=64, page=2)
    case = make_case(plain, [(2, 5)])
    case.q.zero_()
    for position in range(5):
        page = int(case.batch.page_table[0, position // 2])
        case.v_pool[page, position % 2] = float(10**position)
    out = case.run()
    assert torch.allclose(out[0], torch.full((1, 64), (1 + 10 + 100 + 1000) / 4))
    assert torch.allclose(out[1], torch.full((1, 64), (1 + 10 + 100 + 1000 + 10000) / 5))


def test_one_key_is_all_a_first_token_sees() -> None:
    case = make_case(config(), [(1, 1)])
    page = int(case.batch.page_table[0, 0])
    assert torch.allclose(case.run()[0], case.v_pool[page, 0].repeat_interleave(2, dim=0))


def test_the_last_key_counts_and_the_next_does_not() -> None:
    """The suite can fail: one key more or less changes the result."""
    case = make_case(config(), [(1, 20)])
    case.check()
    out = case.run()
    case.batch.kv_lens = [19]
    assert not torch.allclose(out, case.run(), atol=1e-3)


def test_decodes_of_very_different_lengths_are_padded_apart() -> None:
    """One long context does not make every short one cost as much: groups are bounded, results the same."""
    rows = [(1, length) for length in (3, 300, 5, 6, 150, 1, 290, 12)]
    case = make_case(config(), rows)
    case.check()
    backend = TorchAttention(case.config)
    backend.plan(case.batch)
    groups = [decodes.slots.numel() for decodes in case.batch.plan.decodes]
    assert sum(groups) <= 2 * sum(length for _, length in rows)


def test_where_pages_lie_does_not_matter() -> None:
    """The same rows on other pages: the same bits."""
    rows = [(1, 18), (1, 35), (5, 21), (9, 9)]
    case = make_case(config(), rows)
    moved = torch.randperm(len(case.k_pool) - 2) + 2
    to = torch.cat((torch.tensor([0, 1]), moved))
    k_pool, v_pool = torch.empty_like(case.k_pool), torch.empty_like(case.v_pool)
    k_pool[to], v_pool[to] = case.k_pool, case.v_pool
    batch = replace(case.batch, page_table=to[case.batch.page_table], plan=None)
    assert torch.equal(case.run(), Case(case.config, batch, case.q, k_pool, v_pool).run())


def test_q_may_be_a_slice_of_the_fused_projection() -> None:
    case = make_case(config(), [(1, 18), (5, 21), (9, 9)])
    fused = torch.randn(15, 4 + 2 + 2, 64)
    fused[:, :4] = case.q
    strided = Case(case.config, case.batch, fused[:, :4], case.k_pool, case.v_pool)
    assert torch.equal(case.run(), strided.run())


def test_write_kv_puts_each_token_in_its_slot_and_touches_nothing_else() -> None:
    case = make_case(config(page=4), [(1, 6), (3, 9)])
    k, v = torch.randn(4, 2, 64), torch.randn(4, 2, 64)
    k_pool, v_pool = torch.zeros_like(case.k_pool), torch.zeros_like(case.v_pool)
    TorchAttention(case.config).write_kv(k, v, k_pool, v_pool, case.batch)
    for token, slot in enumerate(case.batch.slots.tolist()):
        assert torch.equal(k_pool[slot // 4, slot % 4], k[token])
        assert torch.equal(v_pool[slot // 4, slot % 4], v[token])
    untouched = torch.ones(len(k_pool) * 4, dtype=torch.bool)
    untouched[case.batch.slots] = False
    assert not k_pool.view(-1, 2, 64)[untouched].any()
    assert not v_pool.view(-1, 2, 64)[untouched].any()
