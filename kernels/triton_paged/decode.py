"""Attention of rows with one query: keys are split over programs, since one program per head would leave a GPU idle.

Splits are as long for every row, whatever else is in the batch: a row's result does not depend on its neighbours, down
to the last bit (rule I3). Programs of splits that a row does not have end at once.
"""

# Triton reads annotations of kernels as code, and knows tl.constexpr only.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_paged.tiles import add_tile, pool_offsets, scores_of


# A kernel is compiled anew where a number is 1, or becomes a multiple of 16, unless it is told not to look. These grow
# with the rows that come: seconds, in the middle of a step.
@triton.jit(do_not_specialize=["num_splits", "stride_table"])
def decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    page_table_ptr,
    kv_lens_ptr,
    out_ptr,
    weight_ptr,
    scale,
    softcap,
    window,
    num_splits,
    stride_q_row,
    stride_q_head,
    stride_page,
    stride_slot,
    stride_kv_head,
    stride_table,
    capped: tl.constexpr,
    windowed: tl.constexpr,
    group: tl.constexpr,
    group_padded: tl.constexpr,
    head_dim: tl.constexpr,
    dim_padded: tl.constexpr,
    page_size: tl.constexpr,
    tile: tl.constexpr,
    split: tl.constexpr,
):
    """Program (row, KV head, split). Of each split: the mean of its values, float32 [rows, q heads, splits, head_dim],
    and the base-2 logarithm of its weights' sum, float32 [rows, q heads, splits]. Empty ones are not written."""
    row, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_len = tl.load(kv_lens_ptr + row)
    first_seen = 0
    if windowed:
        first_seen = tl.maximum(kv_len - window, 0)
    begin = tl.maximum(part * split, first_seen // tile * tile)
    end = tl.minimum(part * split + split, kv_len)
    if begin < end:
        heads = tl.arange(0, group_padded)
        dims = tl.arange(0, dim_padded)
        real_heads, real_dims = heads < group, dims < head_dim
        q_heads = kv_head * group + heads
        q_at = row.to(tl.int64) * stride_q_row + q_heads[:, None] * stride_q_head + dims[None, :]
        q = tl.load(q_ptr + q_at, mask=real_heads[:, None] & real_dims[None, :], other=0.0)
        most = tl.full([group_padded], float("-inf"), tl.float32)
        total = tl.zeros([group_padded], tl.float32)
        acc = tl.zeros([group_padded, dim_padded], tl.float32)
        table_row = page_table_ptr + row.to(tl.int64) * stride_table
        for first_key in range(begin, end, tile):
            keys = first_key + tl.arange(0, tile)
            valid = keys < end
            at = pool_offsets(table_row, keys, valid, first_key, stride_page, stride_slot, page_size, tile)
            at = at[:, None] + kv_head * stride_kv_head + dims[None, :]
            loaded = valid[:, None] & real_dims[None, :]  # What lies beyond the row may be NaN: it is not read.
            k = tl.load(k_ptr + at, mask=loaded, other=0.0)
            v = tl.load(v_ptr + at, mask=loaded, other=0.0)
            scores = scores_of(q, k, scale, softcap, capped)
            seen = valid
            if windowed:
                seen = seen & (keys >= first_seen)
            scores = tl.where(seen[None, :], scores, float("-inf"))
            most, total, acc = add_tile(scores, v, most, total, acc)
        num_heads = tl.num_programs(1) * group
        place = (row.to(tl.int64) * num_heads + q_heads) * num_splits + part
        tl.store(weight_ptr + place, most + tl.log2(total), mask=real_heads)
        out_at = place[:, None] * head_dim + dims[None, :]
        tl.store(out_ptr + out_at, acc / total[:, None], mask=real_heads[:, None] & real_dims[None, :])


@triton.jit(do_not_specialize=["num_splits"])
def combine_kernel(
    parts_ptr,
    weight_ptr,
    kv_lens_ptr,
    out_ptr,
    window,
    num_splits,
    stride_out_row,
    stride_out_head,
    windowed: tl.constexpr,
    head_dim: tl.constexpr,
    dim_padded: tl.constexpr,
    split: tl.constexpr,
):
    """Program (row, query head): the splits that the row has, by their weights. Zeros for a row without keys."""
    row, head = tl.program_id(0), tl.program_id(1)
    kv_len = tl.load(kv_lens_ptr + row)
    first_split = 0
    if windowed:
        first_split = tl.maximum(kv_len - window, 0) // split
    last_split = (kv_len + split - 1) // split
    dims = tl.arange(0, dim_padded)
    real_dims = dims < head_dim
    place = (row.to(tl.int64) * tl.num_programs(1) + head) * num_splits
    most = tl.full([1], float("-inf"), tl.float32)
    for part in range(first_split, last_split):
        most = tl.maximum(most, tl.load(weight_ptr + place + part))
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([dim_padded], tl.float32)
    for part in range(first_split, last_split):
        weight = tl.exp2(tl.load(weight_ptr + place + part) - most)
        total += weight
        acc += weight * tl.load(parts_ptr + (place + part) * head_dim + dims, mask=real_dims, other=0.0)
    acc = acc / tl.where(total > 0.0, total, 1.0)
    out_at = row.to(tl.int64) * stride_out_row + head * stride_out_head + dims
    tl.store(out_ptr + out_at, acc.to(out_ptr.dtype.element_ty), mask=real_dims)
