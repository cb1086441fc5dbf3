"""Tensors in the order that the operator reads them in (native/matmul.h, native/chunk.h)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PANEL, LANES = 32, 16
"""Outputs that are computed together; keys of a block, or components."""


def pair_of(dtype: torch.dtype) -> int:
    """How many numbers one lane of 4 bytes multiplies at once."""
    return 4 // dtype.itemsize


def pack_weight(weight: Tensor) -> Tensor:
    """[outputs, inputs] → [panels, inputs / pair, 32, pair], outputs filled up with zeros. `inputs` must be a multiple
    of the pair: 1 of float32, 2 of bfloat16, 4 of int8."""
    pair = pair_of(weight.dtype)
    outputs, inputs = weight.shape
    whole = F.pad(weight, (0, 0, 0, -outputs % PANEL)).contiguous()
    lanes = whole.view(torch.int32).view(-1, PANEL, inputs // pair)
    return lanes.transpose(1, 2).contiguous().view(weight.dtype).view(-1, inputs // pair, PANEL, pair)


def pack_bytes(weight: Tensor) -> Tensor:
    """int8 [outputs, inputs] → uint8 [panels, inputs / 4, 32, 4], 128 larger, outputs filled up with what is zero."""
    return pack_weight(weight).view(torch.uint8) ^ 0x80


def pack_bias(bias: Tensor) -> Tensor:
    """float32 [outputs], filled up with zeros to whole panels."""
    return F.pad(bias.float(), (0, -len(bias) % PANEL)).contiguous()


def interleave(gate: Tensor, up: Tensor) -> Tensor:
    """[inner, ...] twice → [2 * inner, ...]: 16 rows of the gate's, the same 16 of up's, and so on."""
    rest = gate.shape[1:]
    return torch.stack((gate.view(-1, LANES, *rest), up.view(-1, LANES, *rest)), dim=1).flatten(0, 2)


def pack_pages(pages: Tensor) -> Tensor:
    """Exchange layout [..., K and V, page_size, kv_heads, head_dim] → the cache's [..., kv_heads, K and V, page_size *
    head_dim]: keys [page_size / 16, head_dim / pair, 16, pair], values [page_size / pair, head_dim, pair]."""
    *front, _, size, heads, dim = pages.shape
    pair = pair_of(pages.dtype)
    packed = pages.new_empty((*front, heads, 2, size * dim))
    keys, values = (part.movedim(-2, -3) for part in pages.unbind(-4))
    lanes = keys.view(torch.int32).unflatten(-2, (size // LANES, LANES)).transpose(-2, -1)
    packed[..., 0, :].view(torch.int32).unflatten(-1, (size // LANES, dim // pair, LANES)).copy_(lanes)
    to = packed[..., 1, :].unflatten(-1, (size // pair, dim, pair))
    for offset in range(pair):
        to[..., offset].copy_(values[..., offset::pair, :])
    return packed


def unpack_pages(packed: Tensor, page_size: int) -> Tensor:
    """The inverse of `pack_pages`."""
    *front, heads, _, numbers = packed.shape
    dim, pair = numbers // page_size, pair_of(packed.dtype)
    pages = packed.new_empty((*front, 2, page_size, heads, dim))
    keys, values = (part.movedim(-2, -3) for part in pages.unbind(-4))
    lanes = packed[..., 0, :].view(torch.int32).unflatten(-1, (page_size // LANES, dim // pair, LANES))
    keys.view(torch.int32).unflatten(-2, (page_size // LANES, LANES)).copy_(lanes.transpose(-2, -1))
    of = packed[..., 1, :].unflatten(-1, (page_size // pair, dim, pair))
    for offset in range(pair):
        values[..., offset::pair, :].copy_(of[..., offset])
    return pages
