"""Drawing tokens for many rows at once, without waiting for the device between them.

The same distribution and the same number per row as `sampler.draw`, so the same token; there each row is narrowed to
its candidates first, which on a GPU would mean to wait for every row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from actors.messages import SamplingParams
from kernels.lens import to_device

_OFF = float("-inf")


def draw_many(logits: Tensor, settings: Sequence[SamplingParams], numbers: Sequence[float]) -> Tensor:
    """int64 [num_rows] on the logits' device: of each row, one token by its number in [0, 1).

    logits: float32 [num_rows, vocab_size], each row with at least one finite value and no NaN or +inf; every
    temperature is positive. Ties are ordered by token id.
    """
    out = torch.empty(len(settings), dtype=torch.int64, device=logits.device)
    filtered = [index for index, each in enumerate(settings) if _narrows(each)]
    plain = [index for index, each in enumerate(settings) if not _narrows(each)]
    for rows, draw in ((plain, _draw_plain), (filtered, _draw_filtered)):
        if rows:
            which = to_device(torch.tensor(rows), logits.device)
            chosen = [settings[index] for index in rows]
            out[which] = draw(logits[which], chosen, _column([numbers[index] for index in rows], logits))
    return out


def _narrows(sampling: SamplingParams) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    """float64 [num_rows, 1]"""
    return to_device(torch.tensor(values, dtype=torch.float64), like.device)[:, None]


def _scaled(logits: Tensor, settings: Sequence[SamplingParams]) -> Tensor:
    """float64; the largest is 0, so that no temperature makes infinities."""
    temperatures = _column([each.temperature for each in settings], logits)
    return (logits.double() - logits.amax(dim=-1, keepdim=True)) / temperatures


def _draw_plain(logits: Tensor, settings: Sequence[SamplingParams], numbers: Tensor) -> Tensor:
    return _invert(torch.softmax(_scaled(logits, settings), dim=-1), numbers)


def _draw_filtered(logits: Tensor, settings: Sequence[SamplingParams], numbers: Tensor) -> Tensor:
    size = logits.shape[-1]
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    places = torch.arange(size, device=logits.device)
    most = to_device(torch.tensor([each.top_k if each.top_k > 0 else size for each in settings]), logits.device)
    scaled = _scaled(ordered, settings).masked_fill(places >= most[:, None], _OFF)
    probabilities = torch.softmax(scaled, dim=-1)
    top_p = _column([each.top_p if each.top_p < 1.0 else 2.0 for each in settings], logits)
    min_p = _column([each.min_p for each in settings], logits)
    keep = (probabilities.cumsum(-1) - probabilities < top_p) & (probabilities >= min_p * probabilities[:, :1])
    keep[:, 0] = True
    return ids.gather(1, _invert(probabilities * keep, numbers)[:, None])[:, 0]


def _invert(weights: Tensor, numbers: Tensor) -> Tensor:
    """int64 [num_rows]: the first whose cumulative weight exceeds the number times the total."""
    cumulative = weights.cumsum(-1)
    index = torch.searchsorted(cumulative, cumulative[:, -1:] * numbers, right=True)[:, 0]
    places = torch.arange(weights.shape[-1], device=weights.device)
    last = torch.where(weights > 0, places, 0).amax(dim=-1)
    return torch.minimum(index, last)
