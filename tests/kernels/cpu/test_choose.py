"""Tokens drawn by the operator, against the torch runner's sampler: the same settings, numbers and logits."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
import pytest
import torch

from actors.messages import SamplingParams
from actors.runner.torch.sampler import draw
from kernels.cpu.library import DRAW, Library
from tests.kernels.cpu.rig import SHAPE, Bench, Model

BELOW_ONE = math.nextafter(1.0, 0.0)
NUMBERS = [0.0, *((np.arange(40) + 0.37) / 40), 1e-6, 0.99999]
"""None on an edge between two tokens of equal weights, where sums made in another order may fall to either side."""
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 3.0},
    {"temperature": 1e300},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 50},
    {"top_k": 100_000},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 0.999999},
    {"top_p": 0.95, "temperature": 2.0},
    {"min_p": 0.05},
    {"min_p": 0.3, "top_p": 0.9},
    {"top_k": 20, "top_p": 0.8},
    {"top_k": 200, "top_p": 0.9, "min_p": 0.02, "temperature": 1.5},
]


def drawing(settings: SamplingParams, number: float, off: int = 0, num_off: int = 0) -> bytes:
    return DRAW.pack(settings.temperature, settings.top_p, settings.min_p, number, settings.top_k, off, num_off)


def drawn(library: Library, logits: torch.Tensor, settings: SamplingParams, numbers: list[float]) -> list[int]:
    """The tokens of one row for many numbers."""
    rows = logits.repeat(len(numbers), 1).numpy()
    return library.choose(rows, b"".join(drawing(settings, number) for number in numbers))


def random_row(vocab: int, kind: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(vocab, generator=generator)
    if kind == "peaked":
        logits = logits * 6 + 30
    elif kind == "forbidden":
        logits[torch.rand(vocab, generator=generator) < 0.9] = -torch.inf
        logits[vocab // 2] = 0.5
    elif kind == "ties":
        logits = (logits * 2).round() / 2
    return logits


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["plain", "peaked", "forbidden", "ties"])
def test_tokens_equal_those_of_the_torch_sampler(library: Library, settings: dict[str, Any], kind: str) -> None:
    """I3, N51: every filter, alone and together, ties by id."""
    asked = SamplingParams(**{"temperature": 1.0, **settings})
    for vocab in (203, 64, 5000, 49152):
        row = random_row(vocab, kind, seed=vocab)
        numbers = NUMBERS if vocab < 49152 else NUMBERS[::8]
        assert drawn(library, row, asked, numbers) == [draw(row, asked, number) for number in numbers]


@pytest.mark.parametrize(
    "edge",
    [{"top_p": 0.0}, {"top_p": 1e-12}, {"top_k": 1}, {"min_p": 1.0}, {"temperature": 1e-300}, {"temperature": 5e-324}],
    ids=str,
)
def test_the_narrowest_settings_are_greedy(library: Library, edge: dict[str, Any]) -> None:
    row = random_row(5000, "plain", seed=1)
    settings = SamplingParams(**{"temperature": 1.0, **edge})
    assert set(drawn(library, row, settings, [0.0, 0.5, BELOW_ONE])) == {int(row.argmax())}


def test_greedy_takes_the_first_of_the_largest(library: Library) -> None:
    row = torch.zeros(5000)
    row[[70, 3000, 4999]] = 2.0
    assert drawn(library, row, SamplingParams(), [0.9]) == [70]
    assert drawn(library, torch.full((203,), -3.0), SamplingParams(), [0.9]) == [0]


@pytest.mark.parametrize("vocab", [4, 64, 203, 4096])
@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {}, {"top_p": 0.9}, {"top_k": 5}], ids=str)
def test_a_row_without_a_token_is_marked(library: Library, vocab: int, settings: dict[str, Any]) -> None:
    """N52: NaN of either sign anywhere, infinity, and a row in which all is forbidden; -inf alone is no fault."""
    asked = SamplingParams(**{"temperature": 1.0, **settings})
    for value in (math.nan, -math.nan, math.inf):
        for place in (0, vocab // 2, vocab - 1):
            row = torch.zeros(vocab)
            row[place] = value
            assert drawn(library, row, asked, [0.5]) == [-1]
    assert drawn(library, torch.full((vocab,), -torch.inf), asked, [0.5]) == [-1]
    lone = torch.full((vocab,), -torch.inf)
    lone[vocab - 1] = -1e30
    assert drawn(library, lone, asked, [0.0, BELOW_ONE]) == [vocab - 1] * 2


def test_the_ends_of_the_unit_interval_never_choose_an_impossible_token(library: Library) -> None:
    row = torch.full((5000,), -torch.inf)
    row[[700, 3100]] = 0.0
    for filters in ({}, {"top_p": 0.99}, {"top_k": 40}, {"min_p": 0.01}):
        settings = SamplingParams(**{"temperature": 1.0, **filters})
        assert drawn(library, row, settings, [0.0, BELOW_ONE]) == [700, 3100]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_step_chooses_as_its_logits_say(library: Library, threads: int) -> None:
    """I3: the rows of a step, whichever thread chooses; those that are left to others, and what is off, included."""
    bench = Bench(Model.random(SHAPE, getattr(torch, library.variant.dtype)), library, threads)
    lengths = [7, 20, 33, 5, 16, 12]
    warm, hot = SamplingParams(temperature=0.7, top_p=0.8), SamplingParams(temperature=2.0, top_k=9)
    sequences = [bench.sequence(length) for length in lengths]
    plain = torch.cat(bench.step(*zip(sequences, lengths, strict=True), wanted="last"))
    off = array("q", [int(plain[5].argmax()), -1, 10**9])
    draws = [
        drawing(SamplingParams(), 0.1),
        drawing(SamplingParams(temperature=1.0), 0.4),
        drawing(SamplingParams(temperature=-1.0), 0.3),
        drawing(warm, 0.9),
        drawing(hot, 0.7),
        drawing(SamplingParams(), 0.0, *off.buffer_info()),
    ]
    logits, chosen = bench.decoder.choose(
        [token for each in sequences for token in each.ids],
        lengths,
        lengths,
        [page for each in sequences for page in [*each.pages, 0, 0, 0][:4]],
        4,
        (np.cumsum(lengths) - 1).tolist(),
        b"".join(draws),
    )
    bench.close()
    assert torch.equal(torch.from_numpy(logits), plain)
    drawn_alone = [
        draw(plain[1], SamplingParams(temperature=1.0), 0.4),
        draw(plain[3], warm, 0.9),
        draw(plain[4], hot, 0.7),
    ]
    second = int(plain[5].topk(2).indices[1])
    assert chosen == [int(plain[0].argmax()), drawn_alone[0], -1, *drawn_alone[1:], second]
