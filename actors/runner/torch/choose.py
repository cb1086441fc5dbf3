"""From a step's logits to its result: each row under its own grammar, and one row's end no other's."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from actors.engine.plan import StepResult
from actors.messages import TokenLogprobs
from actors.runner.grammar.matchers import DeadEnd, Matchers
from actors.runner.torch.inputs import SampleRow, ScoredRows, StepInputs
from actors.runner.torch.sampler import NO_TOKEN, NOT_FINITE, Pick, logprobs_of, sample, scores_of, told_logprobs

_OFF = float("-inf")


def settle(
    logits: Tensor, inputs: StepInputs, last: dict[int, int], eos_ids: frozenset[int], matchers: Matchers | None
) -> StepResult:
    """logits: float32 [len(inputs.wanted), vocab_size], changed in place: rows that sample, then rows that score."""
    sampling = len(inputs.samples)
    scores, failed = scores_or_faults(logits[sampling:], inputs.scored)
    if not inputs.samples:
        return StepResult(sampled={}, failed=failed, scores=scores)
    result = choose(logits[:sampling], inputs.samples, last, eos_ids, matchers)
    return replace(result, failed=result.failed | failed, scores=scores)


def scores_or_faults(
    logits: Tensor, scored: list[ScoredRows]
) -> tuple[dict[int, tuple[TokenLogprobs, ...]], dict[int, str]]:
    """(scores, failures) by uid: one prompt's numbers are no other's fault."""
    scores: dict[int, tuple[TokenLogprobs, ...]] = {}
    failed: dict[int, str] = {}
    begin = 0
    for rows in scored:
        end = begin + len(rows.tokens)
        try:
            scores[rows.uid] = scores_of(logits[begin:end], rows)
        except ValueError as error:
            failed[rows.uid] = str(error)
        begin = end
    return scores, failed


def choose(
    logits: Tensor,
    rows: list[SampleRow],
    last: dict[int, int],
    eos_ids: frozenset[int],
    matchers: Matchers | None,
    pick: Pick | None = None,
) -> StepResult:
    """logits: float32 [len(rows), vocab_size], changed in place. `last`: what the step before sampled, by uid. `pick`:
    see `sample`."""
    dead_ends: dict[int, str] = {}
    before = logprobs_of(logits, rows)
    for index, row in enumerate(rows):
        if row.constrained:
            try:
                _constrain(logits[index], row, last, matchers)
            except DeadEnd as error:
                dead_ends[row.uid] = str(error)
    chosen = dict(zip((row.uid for row in rows), sample(logits, rows, last, eos_ids, pick), strict=True))
    living = {uid: token for uid, token in chosen.items() if uid not in dead_ends}
    sampled = {uid: token for uid, token in living.items() if token != NO_TOKEN}
    return StepResult(
        sampled=sampled,
        failed={uid: NOT_FINITE for uid, token in living.items() if token == NO_TOKEN},
        dead_ends=dead_ends,
        logprobs=_told(before, rows, sampled),
    )


def _told(before: dict[int, Tensor], rows: list[SampleRow], sampled: dict[int, int]) -> dict[int, TokenLogprobs]:
    """Log probabilities by uid, of the rows that asked for them and have a token."""
    asked = {rows[index].uid: (logprobs, rows[index].sampling) for index, logprobs in before.items()}
    return {
        uid: told_logprobs(logprobs, sampled[uid], sampling.logprobs or 0, sampling.logprob_ids)
        for uid, (logprobs, sampling) in asked.items()
        if uid in sampled
    }


def _constrain(logits: Tensor, row: SampleRow, last: dict[int, int], matchers: Matchers | None) -> None:
    """Nothing that comes later (penalties, biases, temperature) brings back what is switched off here."""
    if matchers is None:
        raise AssertionError("a constrained request where there are no grammars")
    allowed = torch.from_numpy(matchers.allowed(row.uid, row.output(last))).to(logits.device)
    logits.masked_fill_(~allowed, _OFF)
