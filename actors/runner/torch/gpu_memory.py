"""How many KV pages fit on a GPU beside the weights and what steps need.

From the whole memory rather than from what is free: ranks of one worker must come to the same number. What is free is
looked at afterwards, so that somebody else's memory is a clear refusal and no failure in the middle of a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from actors.engine.plan import NUM_RESERVED_PAGES
from actors.model.card import ModelCard
from actors.model.errors import ModelUnusable
from actors.runner.torch.shards import Shard, length

GIB = 2**30
ROW_SPLITS = 64
"""Into how many parts the keys of a decode are split at most."""
LIBRARIES_BYTES = 3 * GIB // 4
"""CUDA's own context, cuBLAS workspaces and captured graphs, about."""
STEP_ROWS = 256
"""Rows of logits that a step's memory is reckoned for, and"""
STEP_TOKENS = 8192
"""its tokens. Larger steps may still fit; the caching allocator gives back what it can."""


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Of one GPU, in bytes."""

    free: int
    total: int

    @classmethod
    def of(cls, device: torch.device) -> GpuMemory:
        free, total = torch.cuda.mem_get_info(device)
        return cls(free, total)


def pages_that_fit(
    card: ModelCard, shard: Shard, dtype: torch.dtype, page_size: int, memory: GpuMemory, share: float
) -> int:
    """KV pages, the reserved ones included, so that everything together takes `share` of the memory.

    Raises ModelUnusable, with the numbers, when not even one context of the model's smallest kind (a page) fits, or
    when others have what should be ours.
    """
    weights, step = weight_bytes(card, shard, dtype), step_bytes(card, shard, dtype)
    page = page_bytes(card, shard, dtype, page_size)
    room = int(memory.total * share) - weights - step - LIBRARIES_BYTES
    pages = room // page
    asked = f"{share:.0%} of the GPU's {_gib(memory.total)}"
    needs = f"weights {_gib(weights)}, steps {_gib(step)}, libraries {_gib(LIBRARIES_BYTES)}"
    if pages <= NUM_RESERVED_PAGES:
        raise ModelUnusable(f"no memory for a KV cache: {asked} hold {needs} and no page of {page / 2**20:.1f} MiB")
    taken = weights + step + LIBRARIES_BYTES + pages * page
    if taken > memory.free:
        raise ModelUnusable(
            f"the GPU has {_gib(memory.free)} free, and {_gib(taken)} are needed ({needs}, KV cache "
            f"{_gib(pages * page)}): lower engine.gpu_memory_share, or set engine.kv_tokens"
        )
    return pages


def page_bytes(card: ModelCard, shard: Shard, dtype: torch.dtype, page_size: int) -> int:
    """One page of all layers, at one rank."""
    return math.prod((card.num_layers, 2, page_size, shard.num_kv_heads, card.head_dim)) * dtype.itemsize


def weight_bytes(card: ModelCard, shard: Shard, dtype: torch.dtype) -> int:
    """One rank's part of all parameters."""
    hidden, inner = card.hidden_size, length(shard.mlp)
    queries, keys = shard.num_heads * card.head_dim, shard.num_kv_heads * card.head_dim
    attention = hidden * (2 * queries + 2 * keys) + card.qkv_bias * (queries + 2 * keys) + card.output_bias * hidden
    mlp = 3 * hidden * inner + card.mlp_bias * (2 * inner + hidden)
    norms = 2 * hidden + card.qk_norm * 2 * card.head_dim
    head = 0 if card.tied_embeddings and shard.size == 1 else length(shard.vocab) * hidden
    numbers = card.num_layers * (attention + mlp + norms) + card.vocab_size * hidden + hidden + head
    return numbers * dtype.itemsize


def step_bytes(card: ModelCard, shard: Shard, dtype: torch.dtype) -> int:
    """What a step has in hand at its widest: hidden states and one layer's projections; logits in float32, twice, and
    in float64 with their order where tokens are drawn; what the splits of a long row leave for each other."""
    wide = 4 * card.hidden_size + 3 * length(shard.mlp) + 3 * shard.num_heads * card.head_dim
    splits = STEP_ROWS * shard.num_heads * ROW_SPLITS * (card.head_dim + 1) * 4
    return STEP_TOKENS * wide * dtype.itemsize + STEP_ROWS * card.vocab_size * (4 + 4 + 8 + 8) + splits


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
