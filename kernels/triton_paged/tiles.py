"""One tile of keys: what decode and prompt kernels have in common.

Online softmax (Milakov & Gimelshein 2018) over tiles of keys as in FlashAttention (Dao et al. 2022): of each query row
the largest score so far, the sum of weights relative to it, and the weighted sum of values, in float32. Scores are in
base 2: they are multiplied by log2(e), since a GPU computes 2^x.
"""

# Triton reads annotations of kernels as code, and knows tl.constexpr only.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634


@triton.jit
def pool_offsets(
    table_row,
    keys,
    valid,
    first_key,
    stride_page,
    stride_slot,
    page_size: tl.constexpr,
    tile: tl.constexpr,
):
    """int64 [tile]: where the keys of a tile begin in the pool. Page ids are widened before they are multiplied: a pool
    may have more than 2^31 elements."""
    if page_size % tile == 0:  # A tile lies in one page.
        page = tl.load(table_row + first_key // page_size).to(tl.int64)
        return page * stride_page + (keys % page_size) * stride_slot
    pages = tl.load(table_row + keys // page_size, mask=valid, other=0).to(tl.int64)
    return pages * stride_page + (keys % page_size) * stride_slot


@triton.jit
def scores_of(q, k, scale, softcap, capped: tl.constexpr):
    """float32 [rows, tile], in base 2. `scale` contains log2(e) where nothing is capped."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if capped:
        # tanh(x) = 1 - 2 / (e^2x + 1): e^2x may be infinite, and that is right.
        scores = softcap * (1.0 - 2.0 / (tl.exp(scores * (2.0 / softcap)) + 1.0)) * 1.4426950408889634
    return scores


@triton.jit
def add_tile(scores, v, most, total, acc):
    """(most, total, acc) with one tile more. Scores of keys that are not seen are -inf."""
    new_most = tl.maximum(most, tl.max(scores, axis=1))
    reference = tl.where(new_most == float("-inf"), 0.0, new_most)  # A row that has seen nothing yet.
    weights = tl.exp2(scores - reference[:, None])
    kept = tl.exp2(most - reference)
    total = total * kept + tl.sum(weights, axis=1)
    acc = acc * kept[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return new_most, total, acc
