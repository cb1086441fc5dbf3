"""From logits to tokens, against plain numpy and the papers' formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from actors.messages import SamplingParams
from actors.runner.randomness import uniform
from actors.runner.torch.inputs import SampleRow
from actors.runner.torch.sampler import NO_TOKEN, draw, sample

VOCAB = 50


def row(sampling: SamplingParams, **fields: Any) -> SampleRow:
    values = {"uid": 1, "output_index": 0, "prompt_len": 0, "seen": None, "pending": False, **fields}
    return SampleRow(sampling=sampling, **values)


def one(logits: torch.Tensor, sampling: SamplingParams, **fields: Any) -> int:
    eos_ids = fields.pop("eos_ids", frozenset({0}))
    return sample(logits[None].clone(), [row(sampling, **fields)], {}, eos_ids)[0]


def allowed_by_numpy(logits: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """Probabilities after temperature, top-k, top-p and min-p, one token after the other."""
    scaled = logits.astype(np.float64) / sampling.temperature
    order = sorted(range(len(logits)), key=lambda i: (-scaled[i], i))
    if sampling.top_k:
        order = order[: sampling.top_k]
    weights = np.exp(scaled[order] - scaled[order[0]])
    weights /= weights.sum()
    kept, total = np.zeros(len(logits)), 0.0
    for token, weight in zip(order, weights, strict=True):
        first = token == order[0]
        if first or (total < sampling.top_p and weight >= sampling.min_p * weights[0]):
            kept[token] = weight
        total += weight
    return kept / kept.sum()


def drawn(logits: torch.Tensor, sampling: SamplingParams, num: int = 800) -> np.ndarray:
    """How often each token comes for numbers spread evenly over [0, 1)."""
    chosen = [draw(logits, sampling, (i + 0.5) / num) for i in range(num)]
    return np.bincount(chosen, minlength=len(logits)) / num


FILTERS = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 1000},
    {"top_p": 0.5},
    {"top_p": 0.95},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 12, "top_p": 0.8},
    {"top_p": 0.9, "min_p": 0.2},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.05, "temperature": 1.5},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_filters_equal_plain_numpy(filters: dict[str, Any]) -> None:
    """Which tokens may come and how often."""
    settings = SamplingParams(**{"temperature": 1.0, **filters})
    for seed in range(2):
        logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
        expected = allowed_by_numpy(logits.numpy(), settings)
        assert np.abs(drawn(logits, settings) - expected).max() < 2e-3


@pytest.mark.parametrize(
    "filters", [{"top_k": 3}, {"top_p": 0.3}, {"min_p": 1.0}, {"top_k": 30, "top_p": 0.35}], ids=str
)
def test_ties_are_ordered_by_token_id(filters: dict[str, Any]) -> None:
    settings = SamplingParams(temperature=1.0, **filters)
    logits = torch.zeros(VOCAB)
    logits[10:20] = 1.0
    assert np.abs(drawn(logits, settings) - allowed_by_numpy(logits.numpy(), settings)).max() < 2e-3


@pytest.mark.parametrize(
    "edge",
    [{"top_p": 0.0}, {"top_p": 1e-12}, {"top_k": 1}, {"min_p": 1.0}, {"temperature": 1e-300}, {"temperature": 1e-5}],
    ids=str,
)
def test_the_narrowest_settings_are_greedy(edge: dict[str, Any]) -> None:
    settings = SamplingParams(**{"temperature": 1.0, **edge})
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    for number in (0.0, 0.5, math.nextafter(1.0, 0.0)):
        assert draw(logits, settings, number) == int(logits.argmax())


def test_the_ends_of_the_unit_interval_never_choose_an_impossible_token() -> None:
    logits = torch.full((VOCAB,), -torch.inf)
    logits[[7, 31]] = 0.0
    for filters in ({}, {"top_p": 0.99}, {"top_k": 40}, {"min_p": 0.01}):
        settings = SamplingParams(temperature=1.0, **filters)
        assert draw(logits, settings, 0.0) == 7
        assert draw(logits, settings, math.nextafter(1.0, 0.0)) == 31


@pytest.mark.parametrize("stream", ["one seed, many places", "many seeds, one place", "both"])
def test_what_is_drawn_follows_the_distribution(stream: str) -> None:
    """Chi-square over many (seed, index): a request's tokens, and those of its siblings, are independent draws."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(20, generator=generator)
    settings = SamplingParams(temperature=1.0)
    num = 3000
    pairs = {
        "one seed, many places": [(42, i) for i in range(num)],
        "many seeds, one place": [(i, 3) for i in range(num)],
        "both": [(i // 80, i % 80) for i in range(num)],
    }[stream]
    counts = np.bincount([draw(logits, settings, uniform(*pair)) for pair in pairs], minlength=20)
    expected = torch.softmax(logits.double(), dim=0).numpy() * num
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert statistic < 43.8, "the 99.9 % quantile of chi-square with 19 degrees of freedom"


def test_uniform_numbers_are_in_range_and_depend_on_both_arguments() -> None:
    numbers = {uniform(seed, index) for seed in (-(2**63), -1, 0, 1, 2**64 - 1) for index in range(200)}
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert len(numbers) == 4 * 200, "seeds are taken modulo 2**64: -1 and 2**64 - 1 are the same"


def test_greedy_takes_the_largest() -> None:
    logits = torch.randn(VOCAB)
    assert one(logits, SamplingParams()) == int(logits.argmax())


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_repetition_penalty_equals_transformers(penalty: float) -> None:
    """Over prompt and output, each token once however often it came."""
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(2))
    seen = [3, 3, 9, 20, 41, 9]
    processor = transformers.RepetitionPenaltyLogitsProcessor(penalty)
    theirs = processor(torch.tensor([seen]), logits[None].clone())[0]
    ours = adjusted(logits, SamplingParams(repetition_penalty=penalty), seen=tuple(seen), prompt_len=3)
    assert torch.equal(ours, theirs)


def test_presence_and_frequency_penalties_follow_openai() -> None:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, with counts c over the output alone."""
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3))
    prompt, output = [5, 6, 6], [6, 8, 8, 8]
    settings = SamplingParams(presence_penalty=0.7, frequency_penalty=-0.4)
    expected = logits.clone()
    for token in set(output):
        expected[token] -= output.count(token) * -0.4 + 0.7
    ours = adjusted(logits, settings, seen=(*prompt, *output), prompt_len=3)
    assert torch.allclose(ours, expected)


def test_a_pending_token_counts_too() -> None:
    """Depth 1: the token still in flight when the step was launched is penalised like the others."""
    logits = torch.zeros(1, VOCAB)
    settings = SamplingParams(presence_penalty=1.0)
    pending = row(settings, uid=9, seen=(5, 6), prompt_len=1, pending=True, output_index=2)
    sample(logits, [pending], {9: 30}, frozenset())
    assert logits[0].nonzero().flatten().tolist() == [6, 30]


def adjusted(logits: torch.Tensor, sampling: SamplingParams, **fields: Any) -> torch.Tensor:
    """What `sample` makes of the logits before it chooses."""
    changed = logits[None].clone()
    sample(changed, [row(sampling, **fields)], {}, frozenset())
    return changed[0]


def test_logit_bias_is_added_and_may_force_or_forbid() -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(4))
    assert one(logits, SamplingParams(logit_bias=((17, 100.0),))) == 17
    best = int(logits.argmax())
    assert one(logits, SamplingParams(logit_bias=((best, -100.0),))) == int(logits.topk(2).indices[1])
    assert adjusted(logits, SamplingParams(logit_bias=((1, 2.5),)))[1] == logits[1] + 2.5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_keeps_every_end_away_until_then(temperature: float) -> None:
    """Neither EOS nor a stop token, whatever the bias; from `min_tokens` on they may come."""
    logits = torch.zeros(VOCAB)
    settings = SamplingParams(
        temperature=temperature, min_tokens=3, stop_token_ids=(8,), logit_bias=((0, 90.0), (8, 100.0))
    )
    for index in range(3):
        assert one(logits, settings, output_index=index) not in (0, 8)
    assert one(logits, settings, output_index=3) == 8


def test_a_row_without_a_token_is_marked_and_the_others_are_not() -> None:
    """N52: NaN, infinity, and a row in which everything is forbidden."""
    logits = torch.zeros(5, 4)
    logits[:, 2] = 5.0
    logits[1, 0] = torch.nan
    logits[2, 1] = torch.inf
    logits[3, :] = -torch.inf
    for temperature in (0.0, 1e-3):
        rows = [row(SamplingParams(temperature=temperature), uid=uid) for uid in range(5)]
        assert sample(logits.clone(), rows, {}, frozenset()) == [2, NO_TOKEN, NO_TOKEN, NO_TOKEN, 2]
