"""The fused step against float64, over permuted pages whose unused slots are NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.cpu.library import Library
from tests.kernels.cpu.rig import PAGE, SHAPE, Bench, Model, check

Open = Callable[..., Bench]


@pytest.fixture
def bench(library: Library) -> Iterator[Open]:
    opened: list[Bench] = []

    def open_(threads: int = 2, seed: int = 0, biases: bool = False, norms: bool = False, **shape: Any) -> Bench:
        dtype = getattr(torch, library.variant.dtype)
        model = Model.random(replace(SHAPE, **shape), dtype, biases=biases, norms=norms)
        opened.append(Bench(model, library, threads, seed))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


def compare(bench: Bench, length: int, *counts: int) -> None:
    """A sequence computed in steps of these sizes, then token by token."""
    sequence = bench.sequence(length)
    steps = [*counts, *[1] * (length - sum(counts))]
    logits = torch.cat([bench.step((sequence, count))[0] for count in steps])
    check(logits, bench.model.reference(sequence.ids), bench.model.dtype)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("counts", [(70,), (16, 17, 37), (1, 15, 33), ()])
def test_a_prompt_may_come_whole_in_chunks_and_token_by_token(
    bench: Open, counts: tuple[int, ...], threads: int
) -> None:
    """I3: page borders in the middle of chunks, at their ends, and one token beyond."""
    compare(bench(threads=threads), 70, *counts)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 1), (9, 3), (14, 2), (8, 1), (4, 4)])
def test_query_heads_share_kv_heads(bench: Open, heads: int, kv_heads: int) -> None:
    compare(bench(heads=heads, kv_heads=kv_heads), 40, 35)


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_head_dims(bench: Open, head_dim: int) -> None:
    compare(bench(head_dim=head_dim, score_scale=head_dim**-0.5), 40, 33)


def test_biases_of_every_projection(bench: Open) -> None:
    compare(bench(biases=True), 40, 33)


def test_norms_of_heads(bench: Open) -> None:
    compare(bench(norms=True), 40, 33)


def test_scale_and_rope_factor_are_the_models(bench: Open) -> None:
    compare(bench(score_scale=0.06, rope_factor=1.3), 40, 33)


@pytest.mark.parametrize("page_size", [16, 32, 64])
def test_page_sizes(bench: Open, page_size: int) -> None:
    compare(bench(page_size=page_size), 3 * page_size + 5, 2 * page_size + 1)


@pytest.mark.parametrize("length", [255, 256, 257, 511, 513, 700])
def test_contexts_longer_than_a_chunk_of_keys(bench: Open, length: int) -> None:
    """Alone it is shared out by chunks over the threads."""
    compare(bench(), length, length - 3)


@pytest.mark.parametrize("rows", [1, 2, 11, 12, 13, 16, 17, 25])
def test_any_number_of_sequences_decode_together(bench: Open, rows: int) -> None:
    several = bench(num_pages=256)
    sequences = [several.sequence(5 + 3 * row, seed=row) for row in range(rows)]
    for sequence in sequences:
        several.step((sequence, len(sequence.ids) - 1))
    for sequence, logits in zip(sequences, several.step(*((each, 1) for each in sequences)), strict=True):
        check(logits, several.model.reference(sequence.ids)[-1:], several.model.dtype)


def test_decodes_and_prefills_share_a_step(bench: Open) -> None:
    """P7."""
    mixed = bench()
    a, b, c, d = (mixed.sequence(length, seed) for seed, length in enumerate((20, 33, 48, 290)))
    mixed.step((a, 19))
    mixed.step((d, 270), (b, 30))
    results = mixed.step((a, 1), (b, 3), (c, 48), (d, 20))
    for sequence, logits in zip((a, b, c, d), results, strict=True):
        check(logits, mixed.model.reference(sequence.ids)[-len(logits) :], mixed.model.dtype)


def test_only_wanted_rows_have_logits(bench: Open) -> None:
    one = bench()
    whole, again = one.sequence(30), one.sequence(30)
    everything = one.step((whole, 30))[0]
    (last,) = one.step((again, 30), wanted="last")
    assert torch.equal(last[0], everything[-1])


def test_a_step_may_be_empty(bench: Open) -> None:
    """I1: nothing in, nothing out, and the next one is as good as ever."""
    here = bench()
    nothing = torch.zeros(0, dtype=torch.int64)
    assert here.decoder.step(nothing, [], [], nothing.view(0, 1), nothing).shape == (0, SHAPE.vocab)
    compare(here, 20, 19)


def test_sequences_may_share_their_first_pages(bench: Open) -> None:
    """K3."""
    one = bench()
    first = one.sequence(2 * PAGE + 4)
    one.step((first, len(first.ids)))
    second = one.sequence(3 * PAGE, seed=5)
    second.ids[: 2 * PAGE], second.pages[:2], second.done = first.ids[: 2 * PAGE], first.pages[:2], 2 * PAGE
    logits = one.step((second, PAGE))[0]
    check(logits, one.model.reference(second.ids)[2 * PAGE :], one.model.dtype)


def test_one_rows_nan_is_no_other_rows(bench: Open) -> None:
    """N52."""
    one = bench()
    one.model.embedding[7] = torch.nan
    fine, bad = one.sequence(20), one.sequence(20, seed=3)
    fine.ids = [token if token != 7 else 8 for token in fine.ids]
    bad.ids[4] = 7
    good_rows, bad_rows = one.step((fine, 20), (bad, 20))
    check(good_rows, one.model.reference(fine.ids), one.model.dtype)
    assert torch.isnan(bad_rows[4:]).all()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tokens": torch.tensor([1, 203])}, "vocabulary"),
        ({"tokens": torch.tensor([-1, 2])}, "vocabulary"),
        ({"page_table": torch.tensor([[64]])}, "no such page"),
        ({"page_table": torch.tensor([[-1]])}, "no such page"),
        ({"kv_lens": [17]}, "page table"),
        ({"kv_lens": [1]}, "page table"),
        ({"q_lens": [3], "kv_lens": [3]}, "number of tokens"),
        ({"wanted": torch.tensor([2])}, "beyond the batch"),
    ],
)
def test_what_lies_out_of_bounds_is_an_error_and_no_crash(bench: Open, change: dict[str, Any], why: str) -> None:
    """I1, N52."""
    fields: dict[str, Any] = {
        "tokens": torch.tensor([1, 2]),
        "q_lens": [2],
        "kv_lens": [2],
        "page_table": torch.tensor([[5]]),
        "wanted": torch.tensor([1]),
    }
    one = bench()
    with pytest.raises(ValueError, match=why):
        one.decoder.step(**{**fields, **change})
    assert one.decoder.kv.isnan().all()
    one.decoder.step(**fields)


def test_the_suite_can_fail(bench: Open) -> None:
    """One token that differs is seen."""
    one = bench()
    sequence = one.sequence(20)
    logits = one.step((sequence, 20))[0]
    other = [*sequence.ids[:5], (sequence.ids[5] + 1) % 203, *sequence.ids[6:]]
    with pytest.raises(AssertionError, match="of the largest logit"):
        check(logits, one.model.reference(other), one.model.dtype)


def test_heads_that_cannot_be_shared_out_are_refused() -> None:
    """Computed, the queries left over would see whatever was in memory."""
    assert "evenly" in replace(SHAPE, heads=5, kv_heads=2).unsupported()
    assert replace(SHAPE, heads=6, kv_heads=2).unsupported() == ""
