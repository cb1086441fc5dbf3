"""KV pages on their way out of the cache and back, in the exchange layout of `ModelRunner.read_pages`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import torch
from torch import Tensor


class TorchPagesRead:
    """Pages being gathered on the compute thread; made into bytes on the thread that waits, beside the next step."""

    def __init__(self, future: Future[Tensor]) -> None:
        self._future = future

    def wait(self) -> bytes:
        return self._future.result().view(torch.uint8).numpy().tobytes()


class TorchPagesWritten:
    """Pages being put in place on the compute thread."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()


def page_shape(kv: Tensor) -> tuple[int, ...]:
    """One page in the exchange layout: [num_layers, 2, page_size, num_kv_heads, head_dim]."""
    return (*kv.shape[:2], *kv.shape[3:])


def gather(kv: Tensor, pages: Sequence[int]) -> Tensor:
    """A copy in CPU memory: [len(pages), *page_shape(kv)], flattened.

    kv: [num_layers, 2, num_pages, page_size, num_kv_heads, head_dim]. Copied page by page: one `index_select` over all
    of them takes four times as long.
    """
    out = torch.empty((len(pages), *page_shape(kv)), dtype=kv.dtype, device=kv.device)
    return gather_into(out, kv, pages).cpu().flatten()


def gather_into(out: Tensor, kv: Tensor, pages: Sequence[int]) -> Tensor:
    """Copy pages to `out`, [len(pages), *page_shape(kv)]; returns it."""
    for row, page in zip(out, check_pages(kv, pages), strict=True):
        row.copy_(kv[:, :, page])
    return out


def scatter(kv: Tensor, pages: Sequence[int], values: Tensor) -> None:
    """The inverse of `gather`: put values, of kv's dtype, in place."""
    rows = values.view(len(pages), *page_shape(kv)).to(kv.device)
    for row, page in zip(rows, check_pages(kv, pages), strict=True):
        kv[:, :, page].copy_(row)


def from_bytes(data: bytes, dtype: torch.dtype) -> Tensor:
    """A flat tensor of its own: torch takes no memory that must not be written."""
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def check_pages(kv: Tensor, pages: Sequence[int]) -> Sequence[int]:
    """Raises IndexError. A negative number would be another page to torch."""
    for page in pages:
        if not 0 <= page < kv.shape[2]:
            raise IndexError(f"there is no page {page}")
    return pages
