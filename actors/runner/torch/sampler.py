"""From logits to tokens.

Order: penalties, logit bias, `min_tokens`, temperature, top-k, top-p, min-p; then one uniform number per token inverts
the cumulative distribution. The number depends on the request's seed and the token's place in the output only, so that
neither the batch nor a preemption changes what is sampled (rule I3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from actors.messages import SamplingParams, TokenLogprobs
from actors.runner.randomness import uniform
from actors.runner.torch.inputs import SampleRow, ScoredRows

NO_TOKEN = -1
NOT_FINITE = "the model's logits are not finite"
_PIECE = 32
"""Rows of a prompt that are scored at once."""
_OFF = float("-inf")
Pick = Callable[[Tensor, Sequence[SampleRow]], list[int]]
"""From adjusted logits, float32 [num_rows, vocab_size], and their rows to tokens; see `sample`."""


def sample(
    logits: Tensor,
    rows: Sequence[SampleRow],
    last: dict[int, int],
    eos_ids: frozenset[int],
    pick: Pick | None = None,
) -> list[int]:
    """One token per row; NO_TOKEN for a row that holds NaN or infinity, or nothing that may be chosen.

    logits: float32 [num_rows, vocab_size], changed in place. `last`: tokens that the step before sampled, for rows
    whose `seen` lacks a pending one. `pick`: what chooses from adjusted logits, in place of torch.
    """
    for index, row in enumerate(rows):
        if needs_adjusting(row):
            _adjust(logits[index], row, last, eos_ids)
    return (pick or pick_by_torch)(logits, rows)


def pick_by_torch(logits: Tensor, rows: Sequence[SampleRow]) -> list[int]:
    likeliest = _likeliest(logits)
    most = logits.gather(1, likeliest[:, None])  # Of a row with a NaN it is NaN.
    usable: list[bool] = most.isfinite().flatten().tolist()
    chosen: list[int] = likeliest.tolist()
    for index, row in enumerate(rows):
        if not usable[index]:
            chosen[index] = NO_TOKEN
        elif row.sampling.temperature > 0:
            chosen[index] = draw(logits[index], row.sampling, uniform(row.sampling.seed, row.output_index))
    return chosen


def _likeliest(logits: Tensor) -> Tensor:
    """int64 [num_rows]: the first of the largest, or the first NaN. On CPU by numpy, which takes a tenth of torch's
    time."""
    return torch.from_numpy(logits.numpy().argmax(axis=-1)) if logits.device.type == "cpu" else logits.argmax(dim=-1)


def logprobs_of(logits: Tensor, rows: list[SampleRow]) -> dict[int, Tensor]:
    """What the rows that ask for log probabilities need of the logits before `sample` changes them: float32
    [vocab_size] each, by index of the row."""
    return {
        index: logits[index].log_softmax(dim=-1) for index, row in enumerate(rows) if row.sampling.logprobs is not None
    }


def told_logprobs(logprobs: Tensor, token: int, count: int, named: Sequence[int] = ()) -> TokenLogprobs:
    """The chosen token's, the `count` likeliest, and those that were named. `logprobs`: float32 [vocab_size]."""
    values, ids = logprobs.topk(min(count, len(logprobs)))
    likeliest = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return float(logprobs[token]), (*likeliest, *((other, float(logprobs[other])) for other in named))


def scores_of(logits: Tensor, rows: ScoredRows) -> tuple[TokenLogprobs, ...]:
    """Log probabilities of a prompt's tokens. logits: float32 [len(rows.tokens), vocab_size]; a piece of it at a time
    is turned into as much again. Raises ValueError where it is not finite."""
    count, named = rows.sampling.logprobs or 0, rows.sampling.logprob_ids
    told: list[TokenLogprobs] = []
    for begin in range(0, len(rows.tokens), _PIECE):
        piece = logits[begin : begin + _PIECE].log_softmax(dim=-1)
        if not bool(piece.max(dim=-1).values.isfinite().all()):
            raise ValueError(NOT_FINITE)
        tokens = rows.tokens[begin : begin + _PIECE]
        own = piece.gather(1, torch.tensor([[token, *named] for token in tokens], device=piece.device)).tolist()
        values, ids = piece.topk(min(count, piece.shape[1]), dim=-1)
        for (mine, *others), likely, theirs in zip(own, ids.tolist(), values.tolist(), strict=True):
            told.append((mine, (*zip(likely, theirs, strict=True), *zip(named, others, strict=True))))
    return tuple(told)


def needs_adjusting(row: SampleRow) -> bool:
    sampling = row.sampling
    return sampling.penalised or bool(sampling.logit_bias) or row.output_index < sampling.min_tokens


def draw(logits: Tensor, sampling: SamplingParams, number: float) -> int:
    """Sample from finite or -inf float32 logits [vocab_size] with a number in [0, 1). Ties are ordered by token id."""
    # The largest becomes 0 first, so that no temperature, however small, makes infinities.
    scaled = (logits.double() - logits.max()) / sampling.temperature
    if sampling.top_k <= 0 and sampling.top_p >= 1.0 and sampling.min_p <= 0.0:
        return _invert(torch.softmax(scaled, dim=-1), number)
    probabilities, ids = _candidates(scaled, sampling)
    keep = torch.ones_like(probabilities, dtype=torch.bool)
    if sampling.top_p < 1.0:
        keep &= probabilities.cumsum(-1) - probabilities < sampling.top_p
    if sampling.min_p > 0.0:
        keep &= probabilities >= sampling.min_p * probabilities[0]
    keep[0] = True
    return int(ids[_invert(probabilities * keep, number)])


def _candidates(scaled: Tensor, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    """(probabilities float64, token ids int64), likeliest first: top k, or at least all that top-p and min-p keep."""
    if sampling.top_k > 0:
        count = min(sampling.top_k, len(scaled))
        values, ids = _at_least(scaled, torch.topk(scaled, count).values[-1])
        return torch.softmax(values[:count], dim=-1), ids[:count]
    probabilities = torch.softmax(scaled, dim=-1)
    least = probabilities.max() * sampling.min_p
    if sampling.top_p < 1.0:
        # Sorting a whole vocabulary takes longer than all else here. Tokens below (1 - top_p) / V weigh less than
        # 1 - top_p all together, so the nucleus is above; half of it, for rounding's sake.
        least = least.clamp(min=(1.0 - sampling.top_p) / (2 * len(scaled)))
    return _at_least(probabilities, least)


def _at_least(values: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """The values that are not below `least` and their indices, in descending order, equal ones by index."""
    ids = torch.nonzero(values >= least).flatten()
    ordered, order = torch.sort(values[ids], descending=True, stable=True)
    return ordered, ids[order]


def _invert(weights: Tensor, number: float) -> int:
    """Index of the first item whose cumulative weight exceeds `number` times the total."""
    cumulative = weights.cumsum(-1)
    index = int(torch.searchsorted(cumulative, cumulative[-1] * number, right=True))
    return min(index, int(torch.nonzero(weights)[-1]))


def _adjust(logits: Tensor, row: SampleRow, last: dict[int, int], eos_ids: frozenset[int]) -> None:
    sampling = row.sampling
    if sampling.penalised and row.seen is not None:
        seen = list(row.seen) + ([last[row.uid]] if row.pending else [])
        _penalise(logits, seen, row.prompt_len, sampling)
    for token, bias in sampling.logit_bias:
        logits[token] += bias
    if row.output_index < sampling.min_tokens:
        stops = [*eos_ids, *sampling.stop_token_ids]
        logits[stops] = _OFF


def _penalise(logits: Tensor, seen: list[int], prompt_len: int, sampling: SamplingParams) -> None:
    """Repetition (Keskar et al. 2019) over prompt and output; presence and frequency, as OpenAI has them, over the
    output alone."""
    if sampling.repetition_penalty != 1.0:
        ids = torch.tensor(sorted(set(seen)), device=logits.device)
        values = logits[ids]
        penalty = sampling.repetition_penalty
        logits[ids] = torch.where(values > 0, values / penalty, values * penalty)
    output = seen[prompt_len:]
    if output and (sampling.presence_penalty or sampling.frequency_penalty):
        ids, counts = torch.tensor(output, device=logits.device).unique(return_counts=True)
        logits[ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts
