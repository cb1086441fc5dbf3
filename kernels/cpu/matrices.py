"""A model's weights as the operator reads them."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu.library import Matrix
from kernels.cpu.memory import Memory
from kernels.cpu.packing import pack_bias, pack_bytes, pack_weight
from kernels.cpu.quantise import quantise_weight


class Matrices:
    """Puts them into `memory`, whose addresses it gives. `quantised`: weights become int8."""

    def __init__(self, memory: Memory, quantised: bool = False) -> None:
        self._memory = memory
        self._quantised = quantised

    def matrix(self, weight: Tensor, bias: Tensor | None) -> Matrix:
        """[outputs, inputs] in the library's dtype, [outputs] in any. Raises what `memory` raises."""
        if not self._quantised:
            return Matrix(panels=self._memory.keep(pack_weight(weight)), bias=self.vector(bias))
        whole, scales = quantise_weight(weight)
        return Matrix(panels=self._memory.keep(pack_bytes(whole)), bias=self.vector(bias), scales=self.vector(scales))

    def vector(self, numbers: Tensor | None) -> int | None:
        """The address of float32 [outputs]; null for none."""
        return None if numbers is None else self._memory.keep(pack_bias(numbers))
