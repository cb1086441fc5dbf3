"""From a step's logits to its result: each row under its own grammar, and one row's end no other's."""

from __future__ import annotations

import torch
from torch import Tensor

from actors.engine.plan import StepResult
from actors.messages import TokenLogprobs
from actors.runner.grammar.matchers import DeadEnd, Matchers
from actors.runner.torch.inputs import SampleRow
from actors.runner.torch.sampler import NO_TOKEN, logprobs_of, sample, told_logprobs

_OFF = float("-inf")
_NOT_FINITE = "the model's logits are not finite"


def choose(
    logits: Tensor, rows: list[SampleRow], last: dict[int, int], eos_ids: frozenset[int], matchers: Matchers | None
) -> StepResult:
    """logits: float32 [len(rows), vocab_size], changed in place. `last`: what the step before sampled, by uid."""
    dead_ends: dict[int, str] = {}
    before = logprobs_of(logits, rows)
    for index, row in enumerate(rows):
        if row.constrained:
            try:
                _constrain(logits[index], row, last, matchers)
            except DeadEnd as error:
                dead_ends[row.uid] = str(error)
    chosen = dict(zip((row.uid for row in rows), sample(logits, rows, last, eos_ids), strict=True))
    living = {uid: token for uid, token in chosen.items() if uid not in dead_ends}
    sampled = {uid: token for uid, token in living.items() if token != NO_TOKEN}
    return StepResult(
        sampled=sampled,
        failed={uid: _NOT_FINITE for uid, token in living.items() if token == NO_TOKEN},
        dead_ends=dead_ends,
        logprobs=_told(before, rows, sampled),
    )


def _told(before: dict[int, Tensor], rows: list[SampleRow], sampled: dict[int, int]) -> dict[int, TokenLogprobs]:
    """Log probabilities by uid, of the rows that asked for them and have a token."""
    asked = {rows[index].uid: (logprobs, rows[index].sampling.logprobs or 0) for index, logprobs in before.items()}
    return {uid: told_logprobs(asked[uid][0], sampled[uid], asked[uid][1]) for uid in asked if uid in sampled}


def _constrain(logits: Tensor, row: SampleRow, last: dict[int, int], matchers: Matchers | None) -> None:
    """Nothing that comes later (penalties, biases, temperature) brings back what is switched off here."""
    if matchers is None:
        raise AssertionError("a constrained request where there are no grammars")
    allowed = torch.from_numpy(matchers.allowed(row.uid, row.output(last))).to(logits.device)
    logits.masked_fill_(~allowed, _OFF)
