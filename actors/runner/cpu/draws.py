"""How the operator is to choose each row's token, and who needs its logits first."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from actors.runner.randomness import uniform
from actors.runner.torch.inputs import SampleRow
from kernels.cpu.library import DRAW

LEAVE = DRAW.pack(-1.0, 1.0, 0.0, 0.0, 0, 0, 0)
"""For a row that the operator leaves to others."""
GREEDY = DRAW.pack(0.0, 1.0, 0.0, 0.0, 0, 0, 0)


class Draws:
    """`packed`: a DRAW for each row. `others`: indices of those rows that are LEAVE."""

    def __init__(self, rows: Sequence[SampleRow], eos_ids: frozenset[int]) -> None:
        self.others: list[int] = []
        self._off: dict[tuple[int, ...], array[int]] = {}
        self._eos_ids = eos_ids
        self.packed = b"".join([self._draw(index, row) for index, row in enumerate(rows)])

    def _draw(self, index: int, row: SampleRow) -> bytes:
        sampling = row.sampling
        if row.constrained or sampling.logprobs is not None or sampling.logit_bias or sampling.penalised:
            self.others.append(index)
            return LEAVE
        if row.output_index < sampling.min_tokens:
            return packed(row, *self._ends(sampling.stop_token_ids))
        return packed(row)

    def _ends(self, stops: tuple[int, ...]) -> tuple[int, int]:
        """(address, length) of all tokens that end a reply, good as long as this object."""
        if stops not in self._off:
            self._off[stops] = array("q", [*self._eos_ids, *stops])
        return self._off[stops].buffer_info()


def packed(row: SampleRow, off: int = 0, num_off: int = 0) -> bytes:
    """DRAW of a row that needs no more of its logits than that some tokens are off."""
    sampling = row.sampling
    if sampling.temperature <= 0:
        return DRAW.pack(0.0, 1.0, 0.0, 0.0, 0, off, num_off) if num_off else GREEDY
    number = uniform(sampling.seed, row.output_index)
    return DRAW.pack(sampling.temperature, sampling.top_p, sampling.min_p, number, sampling.top_k, off, num_off)
