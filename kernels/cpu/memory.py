"""Memory for what every step reads from end to end: in huge pages where the system has them, since the address of each
4 KiB is one more thing to look up otherwise."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import threading
import weakref
from typing import Protocol

import torch
from torch import Tensor

from kernels.cpu.packed import PackedWeights

SLAB = 64 * 2**20
ALIGNMENT = 64
_FILL_BYTES, _FILL_PAUSE_S = 2 * 2**20, 0.005
_FILL_AFTER_S = 10.0
"""What else starts with a worker (Serve, its ingress) goes first."""
_MADV_POPULATE_WRITE = 23


class Memory(Protocol):
    """Where a decoder keeps its packed weights. `keep` and `hold` give addresses that `settled` makes good."""

    def keep(self, tensor: Tensor) -> int:
        """Of a copy, aligned for whole registers, with room to read a little beyond its end."""

    def hold(self, tensor: Tensor) -> int:
        """Of a tensor that need not be copied."""

    def settled(self, packed: PackedWeights) -> PackedWeights:
        """All that was kept, as it is to be used."""


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Address space for it; the system gives zeros as they are touched. Raises RuntimeError when it cannot be had."""
    memory = _mapped(math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)).view(shape)


class Fill:
    """Has the system give a tensor's memory before it is used, little by little: the steps would otherwise wait for a
    page now and then. Ends early when the tensor goes, or its owner calls `stop`.

    At the process's own priority: whoever is interrupted here holds what every other thread's mmap waits for."""

    def __init__(self, tensor: Tensor) -> None:
        self._begin, self._size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        self._stopped = threading.Event()
        self._tensor = weakref.ref(tensor)
        self._thread = threading.Thread(target=self._run, name="remora-fill", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        if self._stopped.wait(_FILL_AFTER_S):
            return
        advise = ctypes.CDLL(None).madvise  # Python's own keeps the interpreter lock.
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for offset in range(0, self._size, _FILL_BYTES):
            tensor = self._tensor()  # Held while its memory is advised.
            if tensor is None or self._stopped.is_set():
                return
            if advise(self._begin + offset, min(_FILL_BYTES, self._size - offset), _MADV_POPULATE_WRITE):
                return  # An older system, or one without memory: pages come as they are touched.
            del tensor
            self._stopped.wait(_FILL_PAUSE_S)


class Arena:
    """Implements `Memory`: many tensors one after the other, the process's own."""

    def __init__(self) -> None:
        self._slabs: list[Tensor] = []
        self._held: list[Tensor] = []
        self._used = 0

    def keep(self, tensor: Tensor) -> int:
        """Raises RuntimeError when the memory cannot be had."""
        size = tensor.numel() * tensor.element_size()
        begin = -(-self._used // ALIGNMENT) * ALIGNMENT
        if not self._slabs or begin + size > len(self._slabs[-1]):
            self._slabs.append(torch.frombuffer(_mapped(max(SLAB, size)), dtype=torch.uint8))
            begin = 0
        self._used = begin + size
        kept = self._slabs[-1][begin : self._used]
        kept.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return kept.data_ptr()

    def hold(self, tensor: Tensor) -> int:
        self._held.append(tensor)
        return tensor.data_ptr()

    def settled(self, packed: PackedWeights) -> PackedWeights:
        return packed


def _mapped(size: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise RuntimeError(f"no memory for {size} bytes: {error}") from error
    with contextlib.suppress(OSError):  # The system has none: ordinary pages do.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
