"""A model that the fused operator computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from actors.runner.cpu.draws import packed
from actors.runner.cpu.load import load_decoder
from actors.runner.cpu.packed_cache import PackedCache
from actors.runner.cpu.shape import shape_of
from actors.runner.torch.inputs import Layout, SampleRow, StepInputs
from actors.runner.torch.setup import ModelSetup
from kernels.cpu.library import Library, load


class FusedModel:
    """Implements `StepModel`. K and V lie in the operator's own order; pages leave in the exchange layout."""

    def __init__(self, setup: ModelSetup, library: Library, threads: int, cache: PackedCache | None = None) -> None:
        """Loads the weights. Raises ModelUnusable."""
        self.decoder = load_decoder(setup, library, threads, cache)
        self._num_pages = setup.num_pages

    @property
    def kv(self) -> Tensor:
        return self.decoder.kv

    def step(self, inputs: StepInputs) -> Tensor:
        batch = inputs.batch
        return self.decoder.step(inputs.tokens, batch.q_lens, batch.kv_lens, batch.page_table, inputs.wanted)

    def choose(self, step: Layout, draws: bytes) -> tuple[np.ndarray, list[int]]:
        """See `FusedDecoder.choose`."""
        numbers = (step.tokens, step.q_lens, step.kv_lens, step.pages, step.table_width, step.wanted)
        return self.decoder.choose(*numbers, draws)

    def pick(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[int]:
        """A `Pick`: the operator's, so that one program draws a token whatever else its row needs."""
        return self.decoder.library.choose(logits.numpy(), b"".join(packed(row) for row in rows))

    def read(self, pages: Sequence[int]) -> Tensor:
        with one_thread():
            return self.decoder.read(self._checked(pages)).flatten()

    def write(self, pages: Sequence[int], values: Tensor) -> None:
        shape = self.decoder.shape
        page = (shape.layers, 2, shape.page_size, shape.kv_heads, shape.head_dim)
        with one_thread():
            self.decoder.write(self._checked(pages), values.view(len(pages), *page))

    def close(self) -> None:
        self.decoder.close()

    def _checked(self, pages: Sequence[int]) -> Sequence[int]:
        for page in pages:
            if not 0 <= page < self._num_pages:
                raise IndexError(f"there is no page {page}")
        return pages


@contextmanager
def one_thread() -> Iterator[None]:
    """For what is left to torch here: it is too little to share, and libgomp's threads would spin. It is the calling
    thread's own affair, and that may have another use for torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fused_library(setup: ModelSetup) -> Library | str:
    """The build of the operator that computes this model here, or why there is none."""
    if setup.device.type != "cpu":
        return f"it computes on CPUs, not on {setup.device.type}"
    if setup.dtype not in (torch.bfloat16, torch.float32):
        return f"it does not compute in {str(setup.dtype).removeprefix('torch.')}"
    dtype = str(setup.dtype).removeprefix("torch.")
    return shape_of(setup).unsupported() or load(dtype, quantization=setup.quantization)
