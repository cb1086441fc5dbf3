"""How a model is dealt out over ranks, and how the first tells the others what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.engine.plan import PlanItem, StepPlan
from actors.messages import SamplingParams
from actors.model.card import ModelCard
from actors.model.errors import ModelUnusable
from actors.runner.torch.commands import Command, pages_command, step_command, step_inputs
from actors.runner.torch.inputs import build_inputs
from actors.runner.torch.shards import length, shard_of, times

Saved = Callable[[str], tuple[Path, Any]]


def card_with(saved: Saved, **fields: int) -> ModelCard:
    return replace(ModelCard.read(saved("llama")[0]), **fields)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(6, 2, 2), (6, 6, 3), (8, 2, 4), (9, 3, 3), (8, 1, 2), (6, 2, 1)]
)
def test_every_head_column_and_row_is_somewhere_once(saved: Saved, heads: int, kv_heads: int, size: int) -> None:
    """But for KV heads where ranks outnumber them; and query heads are where their KV heads are."""
    card = card_with(saved, num_heads=heads, num_kv_heads=kv_heads, intermediate_size=80, vocab_size=199)
    shards = [shard_of(card, rank, size) for rank in range(size)]
    for name, total in (("heads", heads), ("mlp", 80), ("vocab", 199)):
        parts = [getattr(shard, name) for shard in shards]
        assert [row for part in parts for row in range(part.start, part.stop)] == list(range(total)), name
        assert max(map(length, parts)) - min(map(length, parts)) <= 1
    group = heads // kv_heads
    for shard in shards:
        needed = {head // group for head in range(shard.heads.start, shard.heads.stop)}
        assert needed == set(range(shard.kv_heads.start, shard.kv_heads.stop))
        assert shard.num_heads % shard.num_kv_heads == 0
    assert {head for shard in shards for head in range(*shard.kv_heads.indices(kv_heads))} == set(range(kv_heads))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "reason"),
    [
        (9, 3, 2, "9 attention heads cannot be split over 2 ranks"),
        (6, 2, 4, "6 attention heads cannot be split over 4 ranks"),
        (6, 2, 3, "2 KV heads cannot be split over 3 ranks"),
        (12, 6, 4, "6 KV heads cannot be split over 4 ranks"),
    ],
)
def test_heads_that_cannot_be_dealt_out_evenly_are_refused_with_the_numbers(
    saved: Saved, heads: int, kv_heads: int, size: int, reason: str
) -> None:
    with pytest.raises(ModelUnusable, match=reason):
        shard_of(card_with(saved, num_heads=heads, num_kv_heads=kv_heads), 1, size)


def test_rows_of_heads() -> None:
    assert times(slice(2, 4), 16) == slice(32, 64)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_step_arrives_as_it_was_told(page_size: int) -> None:
    """Decodes, chunks in the middle of a prompt, items that do not sample, tables of different lengths."""

    def item(uid: int, start: int, count: int, *, samples: bool = True) -> PlanItem:
        tokens = [uid * 100 + i for i in range(count)]
        pages = [uid * 50 + i for i in range(2, 2 + -(-(start + count) // page_size))]
        return PlanItem(uid, start, count, tokens, pages, samples, False, SamplingParams(), 0, start + count)

    plan = StepPlan(1, (item(1, 30, 1), item(2, 0, 1), item(3, 7, 20, samples=False), item(4, 0, 9)))
    told = build_inputs(plan, page_size)
    heard = step_inputs(step_command(told), page_size)
    for name in ("tokens", "positions", "wanted"):
        assert torch.equal(getattr(heard, name), getattr(told, name)), name
        assert getattr(heard, name).dtype is torch.int64
    assert torch.equal(heard.batch.page_table, told.batch.page_table)
    assert torch.equal(heard.batch.slots, told.batch.slots)
    for name in ("q_lens", "kv_lens", "num_decode"):
        assert getattr(heard.batch, name) == getattr(told.batch, name), name


def test_pages_are_named_behind_what_is_to_be_done_with_them() -> None:
    assert pages_command(Command.WRITE, [7, 9]).tolist() == [3, 7, 9]
