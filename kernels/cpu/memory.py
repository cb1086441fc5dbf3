"""Memory for what every step reads from end to end: in huge pages where the system has them, since the address of each
4 KiB is one more thing to look up otherwise."""

from __future__ import annotations

import contextlib
import math
import mmap

import torch
from torch import Tensor

_SLAB = 64 * 2**20
_ALIGNMENT = 64


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """All of it is there at once. Raises RuntimeError when it cannot be had."""
    memory = _mapped(math.prod(shape) * dtype.itemsize)
    tensor = torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)).view(shape)
    return tensor.zero_()


class Arena:
    """Many tensors one after the other."""

    def __init__(self) -> None:
        self._slab = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def keep(self, tensor: Tensor) -> Tensor:
        """A contiguous copy, aligned for whole registers, with room to read a little beyond its end."""
        size = tensor.numel() * tensor.element_size()
        begin = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if begin + size > len(self._slab):
            self._slab = torch.frombuffer(_mapped(max(_SLAB, size)), dtype=torch.uint8)
            begin = 0
        self._used = begin + size
        kept = self._slab[begin : self._used].view(tensor.dtype).view(tensor.shape)
        return kept.copy_(tensor)


def _mapped(size: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise RuntimeError(f"no memory for {size} bytes: {error}") from error
    with contextlib.suppress(OSError):  # The system has none: ordinary pages do.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
