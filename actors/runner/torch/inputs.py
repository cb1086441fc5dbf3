"""From a plan to tensors. Everything of the plan that the step needs is read here, before `launch` returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from actors.engine.plan import PlanItem, StepPlan
from actors.messages import SamplingParams
from kernels.attention import AttnBatch


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A row that samples. `seen`: ids before it, prompt first, for penalties; a pending one is still to be added."""

    uid: int
    sampling: SamplingParams
    output_index: int
    prompt_len: int
    seen: tuple[int, ...] | None
    pending: bool


@dataclass(slots=True)
class StepInputs:
    """One step, ready to run but for pending tokens.

    tokens, positions: int64 [num_tokens]; wanted: int64, index of each sampling row's last token.
    pending: (index into tokens, uid whose last sampled token goes there). row_of: uid → rows of tokens.
    """

    tokens: Tensor
    positions: Tensor
    wanted: Tensor
    batch: AttnBatch
    pending: list[tuple[int, int]]
    samples: list[SampleRow]


def build_inputs(plan: StepPlan, page_size: int) -> StepInputs:
    """Decodes first, so that attention can treat them together."""
    items = sorted(plan.items, key=lambda item: item.count > 1)
    counts = np.array([item.count for item in items])
    starts = np.array([item.start for item in items])
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    positions = np.arange(counts.sum()) - np.repeat(first, counts) + np.repeat(starts, counts)
    page_table = _page_table(items, page_size)
    row = np.repeat(np.arange(len(items)), counts)
    slots = page_table[row, positions // page_size] * page_size + positions % page_size
    tokens = np.zeros(int(counts.sum()), dtype=np.int64)
    pending: list[tuple[int, int]] = []
    for item, begin in zip(items, first, strict=True):
        known = len(item.tokens)
        tokens[begin : begin + known] = item.tokens
        if item.pending:
            pending.append((int(begin) + known, item.uid))
    sampling = [(index, item) for index, item in enumerate(items) if item.samples]
    wanted = [int(first[index]) + item.count - 1 for index, item in sampling]
    batch = AttnBatch(
        q_lens=counts.tolist(),
        kv_lens=(starts + counts).tolist(),
        page_table=torch.from_numpy(page_table),
        slots=torch.from_numpy(slots),
        num_decode=int((counts == 1).sum()),
    )
    return StepInputs(
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(positions),
        wanted=torch.tensor(wanted, dtype=torch.int64),
        batch=batch,
        pending=pending,
        samples=[_sample_row(item) for _, item in sampling],
    )


def _page_table(items: list[PlanItem], page_size: int) -> np.ndarray:
    """int64 [num_rows, max_pages], 0 where unused."""
    used = [-(-(item.start + item.count) // page_size) for item in items]
    table = np.zeros((len(items), max(used)), dtype=np.int64)
    for row, (item, num_pages) in enumerate(zip(items, used, strict=True)):
        table[row, :num_pages] = item.page_table[:num_pages]
    return table


def _sample_row(item: PlanItem) -> SampleRow:
    seen = None
    if item.seen is not None:
        known = item.start + item.count - item.pending
        seen = tuple(item.seen[:known])
    return SampleRow(item.uid, item.sampling, item.output_index, item.prompt_len, seen, item.pending)
