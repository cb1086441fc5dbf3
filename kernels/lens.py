"""A batch's lengths on the device, in one copy; and batches that a captured graph is replayed with."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.attention import AttentionBackend, AttnBatch, DeviceLens

DUMP_PAGE = 1
"""The page that padding writes to."""


def device_lens(batch: AttnBatch) -> DeviceLens:
    """Copies what the host knows to where `batch.page_table` is."""
    rows = len(batch.q_lens)
    numbers = np.zeros(3 * rows + 2, dtype=np.int32)
    np.cumsum(batch.q_lens, out=numbers[1 : rows + 1])
    np.cumsum(batch.kv_lens, out=numbers[rows + 2 : 2 * rows + 2])
    numbers[2 * rows + 2 :] = batch.kv_lens
    there = to_device(torch.from_numpy(numbers), batch.page_table.device)
    q_start, kv_start, kv_lens = there.split((rows + 1, rows + 1, rows))
    return DeviceLens(q_start, kv_start, kv_lens, batch.page_table.to(torch.int32).contiguous())


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy that a GPU makes while the host goes on; nothing is copied on a CPU."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def graph_batch(backend: AttentionBackend, rows: int, max_context: int) -> AttnBatch:
    """A batch of `rows` decodes, planned, whose tensors stay where they are: capture `forward` with it, then `refill`
    it before every replay. It is empty: no row has keys, and what they write goes to the dump page."""
    config = backend.config
    max_pages = -(-max_context // config.page_size)
    batch = AttnBatch(
        q_lens=[1] * rows,
        kv_lens=[max_context] * rows,
        page_table=torch.zeros((rows, max_pages), dtype=torch.int64, device=config.device),
        slots=torch.full((rows,), DUMP_PAGE * config.page_size, dtype=torch.int64, device=config.device),
        num_decode=rows,
    )
    backend.plan(batch)
    lens = batch.lens
    if lens is None:
        raise AssertionError(f"the attention backend {backend.name} cannot be captured")
    lens.kv_start.zero_()
    lens.kv_lens.zero_()
    return batch


def refill(into: AttnBatch, batch: AttnBatch, page_size: int) -> None:
    """Make a `graph_batch` hold the decodes of `batch`, which has as many rows at most and tensors on the same device
    or on the host. Rows that are left have no keys, and what they write goes to the dump page."""
    lens, rows = into.lens, batch.num_decode
    if lens is None or rows != len(batch.q_lens) or rows > into.num_decode:
        raise AssertionError("a graph of decodes is replayed with decodes, as many as it has room for")
    kv_lens = np.zeros(into.num_decode, dtype=np.int32)
    kv_lens[:rows] = batch.kv_lens
    sums = np.zeros(len(kv_lens) + 1, dtype=np.int32)
    np.cumsum(kv_lens, out=sums[1:])
    lens.kv_lens.copy_(torch.from_numpy(kv_lens), non_blocking=True)
    lens.kv_start.copy_(torch.from_numpy(sums), non_blocking=True)
    width = min(batch.page_table.shape[1], into.page_table.shape[1])
    for table in (into.page_table, lens.page_table):
        table.zero_()
        table[:rows, :width].copy_(batch.page_table[:, :width], non_blocking=True)
    into.slots[rows:].fill_(DUMP_PAGE * page_size)
    into.slots[:rows].copy_(batch.slots, non_blocking=True)
