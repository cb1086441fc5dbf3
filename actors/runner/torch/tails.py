"""Zeros behind the last key of every row, for attention backends that let what lies there into their results.

Such a backend multiplies what is in a row's last page beyond its length by 0, and 0 * NaN is NaN: one request whose
numbers were not finite would spoil others that get its pages, or its own session's next turn. A cache begins as zeros;
so it is enough to know how far each page has been written, and to clear what a row leaves of that behind its end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from kernels.attention import AttnBatch


class CleanTails:
    """For one cache, [num_layers, 2, num_pages, page_size, num_kv_heads, head_dim], which is zeros so far. Told of
    everything that is written into it, in that order."""

    def __init__(self, kv: Tensor) -> None:
        self._kv = kv
        self._size = kv.shape[3]
        self._written = np.zeros(kv.shape[2], dtype=np.int64)
        """Of each page: its slots from this one on are zeros."""

    def before(self, batch: AttnBatch) -> None:
        """A step is about to write its tokens' keys and values. `batch`: with its page table on the host.

        Decodes that go on where they were find nothing to clear."""
        ends = np.asarray(batch.kv_lens)
        counts = np.asarray(batch.q_lens)
        table = batch.page_table.numpy()
        for row in np.flatnonzero(counts):
            first, last = int(ends[row] - counts[row]) // self._size, int(ends[row] - 1) // self._size
            self._written[table[row, first:last]] = self._size
            page, end = int(table[row, last]), int(ends[row]) - last * self._size
            if self._written[page] > end:
                self._kv[:, :, page, end : self._written[page]].zero_()
            self._written[page] = end

    def overwritten(self, pages: Sequence[int]) -> None:
        """Somebody else's content was put into these pages, down to their ends."""
        self._written[list(pages)] = self._size
