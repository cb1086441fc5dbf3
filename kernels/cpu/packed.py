"""A model's packed weights: addresses as the operator wants them, and who keeps the memory there."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kernels.cpu.library import Ends


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """`layers`: an array of `Layer`. `embedding`: [vocab, hidden], not packed. `owner` keeps all of it where it is.

    While they are being written to a file, addresses are offsets there."""

    layers: Any
    ends: Ends
    embedding: Tensor
    owner: object

    def table(self) -> bytes:
        """All addresses."""
        return bytes(self.layers) + bytes(self.ends)


def moved(words: bytes, by: int) -> bytes:
    """Addresses further up by `by`; null stays null."""
    count = len(words) // ctypes.sizeof(ctypes.c_uint64)
    addresses = (ctypes.c_uint64 * count).from_buffer_copy(words)
    return bytes((ctypes.c_uint64 * count)(*(address and address + by for address in addresses)))
