"""From a plan to tensors. Everything of the plan that the step needs is read here, before `launch` returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from actors.engine.plan import NULL_PAGE, PENDING, DecodeRow, Decodes, PlanItem, StepPlan
from actors.messages import SamplingParams
from kernels.attention import AttnBatch


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A row that samples. `seen`: ids before it, prompt first, for penalties and grammars; a pending one is still to be
    added. `constrained`: the request has a grammar."""

    uid: int
    sampling: SamplingParams
    output_index: int
    prompt_len: int
    seen: tuple[int, ...] | None
    pending: bool
    constrained: bool = False

    def output(self, last: dict[int, int]) -> list[int]:
        """Output ids before this row, with the pending one from `last`, the step before's. Needs `seen`."""
        if self.seen is None:
            raise AssertionError("this row does not know what came before it")
        return [*self.seen[self.prompt_len :], *([last[self.uid]] if self.pending else [])]


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Tokens of a request's prompt that are scored, each by one row of logits. `sampling`: what is told beside them."""

    uid: int
    tokens: list[int]
    sampling: SamplingParams


@dataclass(slots=True)
class StepInputs:
    """One step, ready to run but for pending tokens.

    tokens, positions: int64 [num_tokens]; wanted: int64 [num_samples + num_scored], index of each sampling item's last
    token, then of those before each scored token.
    uids: of the batch's rows. pending: (index into tokens, uid whose last sampled token goes there).
    samples: the sampling items, scored: the scored ones, in the order of `wanted`.
    """

    uids: list[int]

    tokens: Tensor
    positions: Tensor
    wanted: Tensor
    batch: AttnBatch
    pending: list[tuple[int, int]]
    samples: list[SampleRow]
    scored: list[ScoredRows] = field(default_factory=list)

    def alone(self, row: int) -> StepInputs:
        """One row of the batch as a step of its own."""
        batch = self.batch
        begin = sum(batch.q_lens[:row])
        end = begin + batch.q_lens[row]
        samples = [sample for sample in self.samples if sample.uid == self.uids[row]]
        scored = [rows for rows in self.scored if rows.uid == self.uids[row]]
        return StepInputs(
            uids=[self.uids[row]],
            tokens=self.tokens[begin:end],
            positions=self.positions[begin:end],
            wanted=self.wanted[(begin <= self.wanted) & (self.wanted < end)] - begin,
            batch=AttnBatch(
                q_lens=[batch.q_lens[row]],
                kv_lens=[batch.kv_lens[row]],
                page_table=batch.page_table[row : row + 1],
                slots=batch.slots[begin:end],
                num_decode=int(batch.q_lens[row] == 1),
            ),
            pending=[(index - begin, uid) for index, uid in self.pending if begin <= index < end],
            samples=samples,
            scored=scored,
        )


def build_inputs(plan: StepPlan, page_size: int) -> StepInputs:
    """Decodes first, so that attention can treat them together; a pending token is 0 as yet. Raises ValueError for a
    plan at odds with itself."""
    decodes = plan.decodes
    for row, start in zip(decodes.rows, decodes.starts, strict=True):
        _check_room(row, start + 1, page_size)
    for item in plan.items:
        _check(item, page_size)
    items = sorted(plan.items, key=lambda item: item.count > 1)
    rows: list[DecodeRow | PlanItem] = [*decodes.rows, *items]
    counts = np.array([1] * len(decodes) + [item.count for item in items])
    starts = np.array(decodes.starts + [item.start for item in items])
    first = _first_of(counts)
    page_table = _page_table(rows, starts + counts, page_size)
    positions, slots = places(counts, starts, page_table, page_size)
    tokens = np.zeros(int(counts.sum()), dtype=np.int64)
    tokens[: len(decodes)] = np.maximum(decodes.tokens, 0)
    pending = [(at, row.uid) for at, row in enumerate(decodes.rows) if decodes.tokens[at] == PENDING]
    for item, begin in zip(items, first[len(decodes) :], strict=True):
        known = len(item.tokens)
        tokens[begin : begin + known] = item.tokens
        if item.pending:
            pending.append((int(begin) + known, item.uid))
    sampling = [(index, item) for index, item in enumerate(items, len(decodes)) if item.samples]
    wanted = [*range(len(decodes)), *(int(first[index]) + item.count - 1 for index, item in sampling)]
    scored = [(index, item) for index, item in enumerate(items, len(decodes)) if item.scored]
    for index, item in scored:
        begin = int(first[index]) + item.scored_at - item.start
        wanted += range(begin, begin + len(item.scored))
    batch = AttnBatch(
        q_lens=counts.tolist(),
        kv_lens=(starts + counts).tolist(),
        page_table=torch.from_numpy(page_table),
        slots=torch.from_numpy(slots),
        num_decode=int((counts == 1).sum()),
    )
    return StepInputs(
        uids=[row.uid for row in rows],
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(positions),
        wanted=torch.tensor(wanted, dtype=torch.int64),
        batch=batch,
        pending=pending,
        samples=[*_decode_samples(decodes), *(_sample_row(item) for _, item in sampling)],
        scored=[ScoredRows(item.uid, list(item.scored), item.sampling) for _, item in scored],
    )


def places(
    counts: np.ndarray, starts: np.ndarray, page_table: np.ndarray, page_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """(positions, slots), int64 [num_tokens], of rows with `counts` tokens each, from position `starts` on."""
    positions = np.arange(counts.sum()) - np.repeat(_first_of(counts), counts) + np.repeat(starts, counts)
    row = np.repeat(np.arange(len(counts)), counts)
    return positions, page_table[row, positions // page_size] * page_size + positions % page_size


def _first_of(counts: np.ndarray) -> np.ndarray:
    """Which token of the step each row's first one is."""
    return np.concatenate(([0], np.cumsum(counts)[:-1]))


def _check(item: PlanItem, page_size: int) -> None:
    known, end = len(item.tokens), item.start + item.count
    if item.count < 1 or known + item.pending != item.count:
        raise ValueError(f"request {item.uid}: {known} tokens for {item.count} positions, pending {item.pending}")
    _check_room(item, end, page_size)
    if item.scored and not item.start <= item.scored_at <= end - len(item.scored):
        raise ValueError(f"request {item.uid}: position {item.scored_at} does not score {len(item.scored)} tokens")


def _check_room(row: DecodeRow | PlanItem, end: int, page_size: int) -> None:
    if len(row.page_table) * page_size < end:
        raise ValueError(f"request {row.uid}: {len(row.page_table)} pages of {page_size} for {end} positions")


def _page_table(rows: list[DecodeRow | PlanItem], ends: np.ndarray, page_size: int) -> np.ndarray:
    """int64 [num_rows, max_pages], NULL_PAGE where unused. `ends`: int64 [num_rows], one past each row's last
    position."""
    used = (-(-ends // page_size)).tolist()
    table = np.full((len(rows), max(used)), NULL_PAGE, dtype=np.int64)
    for at, (row, num_pages) in enumerate(zip(rows, used, strict=True)):
        table[at, :num_pages] = row.page_table[:num_pages]
    return table


def _decode_samples(decodes: Decodes) -> Iterator[SampleRow]:
    for row, start, token in zip(decodes.rows, decodes.starts, decodes.tokens, strict=True):
        yield SampleRow(row.uid, row.sampling, start + 1 - row.prompt_len, row.prompt_len, None, token == PENDING)


def _sample_row(item: PlanItem) -> SampleRow:
    seen = None
    if item.seen is not None:
        known = item.start + item.count - item.pending
        seen = tuple(item.seen[:known])
    return SampleRow(item.uid, item.sampling, item.output_index, item.prompt_len, seen, item.pending, item.constrained)
