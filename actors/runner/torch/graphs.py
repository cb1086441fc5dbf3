"""Decodes as CUDA graphs: a step of one token per row is hundreds of small kernels, and starting each from Python takes
longer than it runs. A graph starts them all at once.

A graph is captured for a number of rows (a bucket) and replayed for as many or fewer; the rest is padding, whose rows
have no keys and write to the dump page. It works on the memory that it was captured with: buffers stay, and their
content is replaced before every replay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from actors.runner.torch.decoder import Decoder
from actors.runner.torch.inputs import StepInputs
from actors.runner.torch.local_model import LocalModel
from actors.runner.torch.setup import ModelSetup
from kernels.attention import AttentionBackend, AttnBatch
from kernels.lens import graph_batch, refill, to_device

WARM_UPS = 2
"""Runs before a capture: kernels are compiled and workspaces allocated then."""


class Capturer(Protocol):
    """What makes graphs; CUDA does, and in tests something that repeats operations on the same memory."""

    def capture(self, work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """`work`'s result, and what computes it again, in place, from what is then in the memory that `work` read."""


class CudaCapturer:
    """CUDA graphs that share one pool of memory: no two of them are replayed at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def capture(self, work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        # Errors of other threads' CUDA calls (copies of pages) must not end a capture: hence thread_local.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            result = work()
        return result, graph.replay


@dataclass(slots=True)
class _Graph:
    """`logits`: float32 [bucket, vocab_size], overwritten by `replay`."""

    batch: AttnBatch
    logits: Tensor
    replay: Callable[[], None]


class DecodeGraphs:
    """One graph per bucket, all captured at construction, the largest first: smaller ones then find room in its pool.

    The result of `step` is overwritten by the next one.
    """

    def __init__(
        self,
        decoder: Decoder,
        attention: AttentionBackend,
        kv: Tensor,
        max_context: int,
        buckets: Sequence[int],
        capturer: Capturer,
    ) -> None:
        """kv: as in `Decoder.forward`. `buckets` in ascending order. Raises what the capturer raises."""
        device, largest = kv.device, buckets[-1]
        self._page_size = attention.config.page_size
        self._buckets = list(buckets)
        self._tokens = torch.zeros(largest, dtype=torch.int64, device=device)
        self._positions = torch.zeros(largest, dtype=torch.int64, device=device)
        # Kept for as long as the graphs are: they read it at every replay, and a graph keeps no memory but its own.
        self._every = torch.arange(largest, device=device)
        self._logits = torch.empty((largest, decoder.card.vocab_size), dtype=torch.float32, device=device)
        self._graphs: dict[int, _Graph] = {}
        for rows in reversed(self._buckets):
            batch = graph_batch(attention, rows, max_context)

            @torch.inference_mode()
            def work(rows: int = rows, batch: AttnBatch = batch) -> Tensor:
                tokens, positions = self._tokens[:rows], self._positions[:rows]
                # To one place for all graphs: each would keep as much as its rows' logits take.
                return self._logits[:rows].copy_(
                    decoder.forward(tokens, positions, self._every[:rows], attention, batch, kv)
                )

            logits, replay = capturer.capture(work)
            self._graphs[rows] = _Graph(batch, logits, replay)

    def take(self, inputs: StepInputs) -> bool:
        """Whether this step is one of decodes that there is a graph for."""
        rows = len(inputs.uids)
        return rows <= self._buckets[-1] and inputs.batch.num_decode == rows

    def step(self, inputs: StepInputs) -> Tensor:
        """Logits float32 [len(inputs.wanted), vocab_size] of a step that `take` takes."""
        rows = len(inputs.uids)
        graph = self._graphs[self._buckets[bisect_left(self._buckets, rows)]]
        # Padding rows keep some token and position of an earlier step: what they compute goes nowhere.
        device = self._tokens.device
        self._tokens[:rows].copy_(to_device(inputs.tokens, device))
        self._positions[:rows].copy_(to_device(inputs.positions, device))
        refill(graph.batch, inputs.batch, self._page_size)
        graph.replay()
        if len(inputs.wanted) == rows:  # Each samples, in order.
            return graph.logits[:rows]
        return graph.logits.index_select(0, to_device(inputs.wanted, device))


class GraphedModel(LocalModel):
    """A `LocalModel` that replays decodes and computes all other steps as they come."""

    def __init__(self, setup: ModelSetup, attention: AttentionBackend, capturer: Capturer, max_rows: int) -> None:
        """Loads the weights and captures, for up to `max_rows` decodes. Raises ModelUnusable."""
        super().__init__(setup, attention)
        self.graphs = DecodeGraphs(
            self.decoder, attention, self.kv, setup.card.max_context, buckets_up_to(max_rows), capturer
        )

    def step(self, inputs: StepInputs) -> Tensor:
        if not self.graphs.take(inputs):
            return super().step(inputs)
        self.clear_tails(inputs)
        return self.graphs.step(inputs)


def buckets_up_to(most: int) -> list[int]:
    """1, 2, 4, then every 8th to 64, every 16th to 256, every 64th: padding is half at most, and little where steps are
    long."""
    usual = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, most + 64, 64)]
    return [*(rows for rows in usual if rows < most), most]
