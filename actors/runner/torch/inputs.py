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


@dataclass(slots=True)
class Layout:
    """One step in plain lists, ready to run but for pending tokens.

    tokens: of all rows, one row after the other. q_lens, kv_lens: of each row. pages: [num_rows, table_width] in one,
    NULL_PAGE where unused. The others as in `StepInputs`.
    """

    uids: list[int]

    tokens: list[int]
    q_lens: list[int]
    kv_lens: list[int]
    pages: list[int]
    table_width: int
    wanted: list[int]
    pending: list[tuple[int, int]]
    samples: list[SampleRow]
    scored: list[ScoredRows]

    def alone(self, row: int) -> Layout:
        """One row of the batch as a step of its own."""
        begin = sum(self.q_lens[:row])
        end = begin + self.q_lens[row]
        uid, width = self.uids[row], self.table_width
        return Layout(
            uids=[uid],
            tokens=self.tokens[begin:end],
            q_lens=self.q_lens[row : row + 1],
            kv_lens=self.kv_lens[row : row + 1],
            pages=self.pages[row * width : (row + 1) * width],
            table_width=width,
            wanted=[index - begin for index in self.wanted if begin <= index < end],
            pending=[(index - begin, uid) for index, uid in self.pending if begin <= index < end],
            samples=[sample for sample in self.samples if sample.uid == uid],
            scored=[rows for rows in self.scored if rows.uid == uid],
        )


def build_inputs(plan: StepPlan, page_size: int) -> StepInputs:
    """As `lay_out`, and as tensors."""
    layout = lay_out(plan, page_size)
    q_lens, kv_lens = np.array(layout.q_lens), np.array(layout.kv_lens)
    table = np.array(layout.pages, dtype=np.int64).reshape(len(q_lens), layout.table_width)
    positions, slots = places(q_lens, kv_lens - q_lens, table, page_size)
    batch = AttnBatch(
        q_lens=layout.q_lens,
        kv_lens=layout.kv_lens,
        page_table=torch.from_numpy(table),
        slots=torch.from_numpy(slots),
        num_decode=layout.q_lens.count(1),
    )
    return StepInputs(
        uids=layout.uids,
        tokens=torch.tensor(layout.tokens, dtype=torch.int64),
        positions=torch.from_numpy(positions),
        wanted=torch.tensor(layout.wanted, dtype=torch.int64),
        batch=batch,
        pending=layout.pending,
        samples=layout.samples,
        scored=layout.scored,
    )


def lay_out(plan: StepPlan, page_size: int) -> Layout:
    """Decodes first, so that attention can treat them together; a pending token is 0 as yet. Raises ValueError for a
    plan at odds with itself."""
    decodes = plan.decodes
    for row, start in zip(decodes.rows, decodes.starts, strict=True):
        _check_room(row, start + 1, page_size)
    for item in plan.items:
        _check(item, page_size)
    items = sorted(plan.items, key=lambda item: item.count > 1)
    rows: list[DecodeRow | PlanItem] = [*decodes.rows, *items]
    ends = [*(start + 1 for start in decodes.starts), *(item.start + item.count for item in items)]
    pages, width = _pages(rows, ends, page_size)
    layout = Layout(
        uids=[row.uid for row in rows],
        tokens=decodes.tokens.copy(),
        q_lens=[1] * len(decodes) + [item.count for item in items],
        kv_lens=ends,
        pages=pages,
        table_width=width,
        wanted=list(range(len(decodes))),
        pending=[],
        samples=list(_decode_samples(decodes)),
        scored=[],
    )
    if PENDING in layout.tokens:
        layout.pending += [(at, layout.uids[at]) for at, token in enumerate(layout.tokens) if token == PENDING]
        layout.tokens = [0 if token == PENDING else token for token in layout.tokens]
    _add_items(layout, items)
    return layout


def _add_items(layout: Layout, items: list[PlanItem]) -> None:
    scored: list[int] = []
    for item in items:
        first_scored = len(layout.tokens) + item.scored_at - item.start
        layout.tokens += item.tokens
        if item.pending:
            layout.pending.append((len(layout.tokens), item.uid))
            layout.tokens.append(0)
        if item.samples:
            layout.wanted.append(len(layout.tokens) - 1)
            layout.samples.append(_sample_row(item))
        if item.scored:
            layout.scored.append(ScoredRows(item.uid, list(item.scored), item.sampling))
            scored += range(first_scored, first_scored + len(item.scored))
    layout.wanted += scored


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


def _pages(rows: list[DecodeRow | PlanItem], ends: list[int], page_size: int) -> tuple[list[int], int]:
    """(page tables of equal length one after the other, that length). `ends`: one past each row's last position."""
    used = [-(-end // page_size) for end in ends]
    width = max(used)
    pages: list[int] = []
    for row, count in zip(rows, used, strict=True):
        pages += row.page_table[:count]
        if count < width:
            pages += [NULL_PAGE] * (width - count)
    return pages, width


def _decode_samples(decodes: Decodes) -> Iterator[SampleRow]:
    for row, start, token in zip(decodes.rows, decodes.starts, decodes.tokens, strict=True):
        yield SampleRow(row.uid, row.sampling, start + 1 - row.prompt_len, row.prompt_len, None, token == PENDING)


def _sample_row(item: PlanItem) -> SampleRow:
    seen = None
    if item.seen is not None:
        known = item.start + item.count - item.pending
        seen = tuple(item.seen[:known])
    return SampleRow(item.uid, item.sampling, item.output_index, item.prompt_len, seen, item.pending, item.constrained)
