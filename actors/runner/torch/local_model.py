"""What one process has of a model: its decoder, its KV cache, its attention. All of it, or one rank's part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from actors.model.errors import ModelUnusable
from actors.model.weights import Weights
from actors.runner.torch.decoder import Decoder
from actors.runner.torch.group import ALONE, Peers
from actors.runner.torch.inputs import StepInputs
from actors.runner.torch.memory import available_bytes
from actors.runner.torch.pages import gather, scatter
from actors.runner.torch.setup import ModelSetup
from actors.runner.torch.shards import Shard, shard_of
from actors.runner.torch.tails import CleanTails
from kernels.attention import AttentionBackend, AttnBatch, AttnConfig
from kernels.lens import to_device
from kernels.selection import select_backend


class StepModel(Protocol):
    """What the runner needs of a model, wherever its parts are. Called on one thread, in inference mode."""

    def step(self, inputs: StepInputs) -> Tensor:
        """Logits float32 [num_samples, vocab_size]. `inputs` stays as it is."""

    def read(self, pages: Sequence[int]) -> Tensor:
        """Pages in the exchange layout, flat, in CPU memory. Raises IndexError."""

    def write(self, pages: Sequence[int], values: Tensor) -> None:
        """The inverse of `read`."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step's tensors on the device, and its batch with attention's plan."""

    tokens: Tensor
    positions: Tensor
    wanted: Tensor
    batch: AttnBatch


class LocalModel:
    """Implements `StepModel` over this process's part; `peers` says which that is.

    kv: [num_layers, 2, num_pages, page_size, KV heads of this part, head_dim].
    """

    def __init__(self, setup: ModelSetup, attention: AttentionBackend, peers: Peers = ALONE) -> None:
        """Loads the weights. Raises ModelUnusable."""
        self._device = setup.device
        self._attention = attention
        self.shard = shard_of(setup.card, peers.rank, peers.size)
        with Weights(setup.folder, setup.dtype) as weights:
            self.decoder = Decoder(setup.card, weights, setup.device, peers)
        self.kv = _empty_kv(setup, self.shard)
        self._tails = CleanTails(self.kv) if attention.needs_clean_tail else None

    def step(self, inputs: StepInputs) -> Tensor:
        return self.forward(self.prepare(inputs))

    def prepare(self, inputs: StepInputs) -> Prepared:
        """All of a step that can fail because of what is asked for."""
        device = self._device
        self.clear_tails(inputs)
        table, slots = to_device(inputs.batch.page_table, device), to_device(inputs.batch.slots, device)
        batch = replace(inputs.batch, page_table=table, slots=slots)
        self._attention.plan(batch)
        tokens, positions, wanted = (
            to_device(each, device) for each in (inputs.tokens, inputs.positions, inputs.wanted)
        )
        return Prepared(tokens, positions, wanted, batch)

    def forward(self, step: Prepared) -> Tensor:
        return self.decoder.forward(step.tokens, step.positions, step.wanted, self._attention, step.batch, self.kv)

    def clear_tails(self, inputs: StepInputs) -> None:
        """What attention wants to be clean, before the step that `inputs` are of."""
        if self._tails is not None:
            self._tails.before(inputs.batch)

    def read(self, pages: Sequence[int]) -> Tensor:
        return gather(self.kv, pages)

    def write(self, pages: Sequence[int], values: Tensor) -> None:
        scatter(self.kv, pages, values)
        self.overwritten(pages)

    def overwritten(self, pages: Sequence[int]) -> None:
        """Something was put into pages, past `write` or by it."""
        if self._tails is not None:
            self._tails.overwritten(pages)

    def close(self) -> None:
        """There is nobody to tell."""


def attention_for(setup: ModelSetup, peers: Peers = ALONE) -> tuple[AttentionBackend, dict[str, str]]:
    """See `select_backend`. Raises ModelUnusable for heads that cannot be dealt out, NoBackend."""
    card, shard = setup.card, shard_of(setup.card, peers.rank, peers.size)
    config = AttnConfig(
        num_q_heads=shard.num_heads,
        num_kv_heads=shard.num_kv_heads,
        head_dim=card.head_dim,
        dtype=setup.dtype,
        device=setup.device,
        page_size=setup.page_size,
        scale=card.head_dim**-0.5,
        max_context=card.max_context,
    )
    return select_backend(config, setup.attention)


def _empty_kv(setup: ModelSetup, shard: Shard) -> Tensor:
    """Zeros. On CPU the memory is asked for first: an allocation beyond it gets processes killed, no error."""
    card = setup.card
    shape = (card.num_layers, 2, setup.num_pages, setup.page_size, shard.num_kv_heads, card.head_dim)
    needed = math.prod(shape) * setup.dtype.itemsize
    free = available_bytes() if setup.device.type == "cpu" else None
    text = f"no memory for a KV cache of {setup.num_pages * setup.page_size} tokens ({needed / 2**30:.1f} GiB)"
    if free is not None and needed > free:
        raise ModelUnusable(f"{text}: {free / 2**30:.1f} GiB are free; lower engine.kv_tokens")
    try:
        return torch.zeros(shape, dtype=setup.dtype, device=setup.device)
    except RuntimeError as error:
        raise ModelUnusable(f"{text}; lower engine.kv_tokens") from error
