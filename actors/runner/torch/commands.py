"""What the first rank tells the others: int32 numbers, the first of which says what is to be done.

A step is told with its tokens known: they were sampled at the first rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise

import numpy as np
import torch

from actors.runner.torch.inputs import StepInputs, places
from kernels.attention import AttnBatch


class Command(IntEnum):
    """STEP: compute it. READ: give these pages to the first rank. WRITE: put what it sends into these. STOP: end."""

    STOP = 0
    STEP = 1
    READ = 2
    WRITE = 3


def stop_command() -> np.ndarray:
    return np.array([Command.STOP], dtype=np.int32)


def pages_command(command: Command, pages: Sequence[int]) -> np.ndarray:
    return np.array([command, *pages], dtype=np.int32)


def step_command(inputs: StepInputs) -> np.ndarray:
    """[STEP, rows, table width, samples, decodes, q_lens…, kv_lens…, wanted…, page table…, tokens…]"""
    batch = inputs.batch
    rows, width = batch.page_table.shape
    parts = [
        [Command.STEP, rows, width, len(inputs.wanted), batch.num_decode],
        batch.q_lens,
        batch.kv_lens,
        inputs.wanted.numpy(),
        batch.page_table.numpy().reshape(-1),
        inputs.tokens.numpy(),
    ]
    return np.concatenate([np.asarray(part, dtype=np.int32) for part in parts])


def step_inputs(numbers: np.ndarray, page_size: int) -> StepInputs:
    """The inverse of `step_command`, for who computes and does not sample."""
    rows, width, samples, num_decode = (int(number) for number in numbers[1:5])
    ends = np.cumsum([5, rows, rows, samples, rows * width])
    q_lens, kv_lens, wanted, table = (numbers[begin:end].astype(np.int64) for begin, end in pairwise(ends))
    page_table = table.reshape(rows, width)
    positions, slots = places(q_lens, kv_lens - q_lens, page_table, page_size)
    return StepInputs(
        uids=[],
        tokens=torch.from_numpy(numbers[ends[-1] :].astype(np.int64)),
        positions=torch.from_numpy(positions),
        wanted=torch.from_numpy(wanted),
        batch=AttnBatch(
            q_lens=q_lens.tolist(),
            kv_lens=kv_lens.tolist(),
            page_table=torch.from_numpy(page_table),
            slots=torch.from_numpy(slots),
            num_decode=num_decode,
        ),
        pending=[],
        samples=[],
    )
