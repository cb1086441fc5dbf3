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
    # Each begins at a multiple of 16 bytes: Triton compiles a kernel anew where that is not so.
    numbers = np.zeros((3, rows // 4 * 4 + 4), dtype=np.int32)
    np.cumsum(batch.q_lens, out=numbers[0, 1 : rows + 1])
    np.cumsum(batch.kv_lens, out=numbers[1, 1 : rows + 1])
    numbers[2, :rows] = batch.kv_lens
    q_start, kv_start, kv_lens = to_device(torch.from_numpy(numbers), batch.page_table.device)
    return DeviceLens(
        q_start[: rows + 1], kv_start[: rows + 1], kv_lens[:rows], batch.page_table.to(torch.int32).contiguous()
    )


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor where the device is. From the host to a GPU it is a copy that the host does not wait for: a plain
    `.to(device)` would wait for everything that the GPU has been given before."""
    if device.type != "cuda" or tensor.device.type != "cpu":
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
    device, size = into.slots.device, into.num_decode
    numbers = np.zeros(2 * size + 1, dtype=np.int32)
    numbers[:rows] = batch.kv_lens
    np.cumsum(numbers[:size], out=numbers[size + 1 :])
    there = to_device(torch.from_numpy(numbers), device)
    lens.kv_lens.copy_(there[:size])
    lens.kv_start.copy_(there[size:])
    width = min(batch.page_table.shape[1], into.page_table.shape[1])
    pages = to_device(batch.page_table, device)[:, :width]
    for table in (into.page_table, lens.page_table):
        table.zero_()
        table[:rows, :width].copy_(pages)
    into.slots[rows:].fill_(DUMP_PAGE * page_size)
    into.slots[:rows].copy_(to_device(batch.slots, device))
