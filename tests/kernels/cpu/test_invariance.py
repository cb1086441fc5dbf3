"""A row's logits are the same bits whatever else is in the batch (rule I3)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from kernels.cpu.library import Library
from tests.kernels.cpu.rig import SHAPE, Bench, Model


def dtype_of(library: Library) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, library.variant.dtype)
    return dtype


@pytest.mark.parametrize("heads", [4, 6])
def test_logits_do_not_depend_on_chunks_company_pages_or_threads(
    library: Library, quantization: str, heads: int
) -> None:
    """I3: prefilled whole by one thread, and in random bits beside others on other pages by three: the same bits."""
    model = Model.random(replace(SHAPE, num_pages=200, heads=heads), dtype_of(library))
    alone = Bench(model, library, threads=1, quantization=quantization)
    sequence = alone.sequence(600)
    expected = alone.step((sequence, 600))[0]
    alone.close()

    crowd = Bench(model, library, threads=3, seed=9, quantization=quantization)
    rng = random.Random(1)
    sequence = crowd.sequence(600)
    others = [crowd.sequence(length, seed=length) for length in (300, 610, 450, 90)]
    got = []
    while sequence.done < 600:
        count = min(rng.choice((1, 1, 2, 13, 16, 40)), 600 - sequence.done)
        company = [(each, 1) for each in others if each.done + 1 < len(each.ids) and rng.random() < 0.6]
        company += [(each, 7) for each in others[:1] if each.done + 8 < len(each.ids)]
        company = list({id(each): (each, n) for each, n in company}.values())
        place = rng.randint(0, len(company))
        results = crowd.step(*company[:place], (sequence, count), *company[place:])
        got.append(results[place])
    crowd.close()
    assert torch.equal(torch.cat(got), expected)


def test_logits_do_not_depend_on_how_many_rows_want_them(library: Library, quantization: str) -> None:
    model = Model.random(replace(SHAPE, num_pages=200), dtype_of(library))
    bench = Bench(model, library, quantization=quantization)
    first, again = bench.sequence(40), bench.sequence(40)
    everything = bench.step((first, 40))[0]
    bench.step((again, 39))
    (last,) = bench.step((again, 1), wanted="last")
    bench.close()
    assert torch.equal(last[0], everything[-1])
