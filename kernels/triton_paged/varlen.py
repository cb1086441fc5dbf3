"""Attention of rows with several queries: fresh prompts, and chunks that extend a context that is in the pool already.

A program has a block of queries of one row, with all the query heads that share a KV head: its rows are
(query, head of the group), so that each key is read once for them all.
"""

# Triton reads annotations of kernels as code, and knows tl.constexpr only.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_paged.tiles import add_tile, pool_offsets, scores_of


@triton.jit(do_not_specialize=["stride_table"])  # See `decode_kernel`.
def varlen_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    page_table_ptr,
    q_start_ptr,
    kv_lens_ptr,
    blocks_ptr,
    out_ptr,
    scale,
    softcap,
    window,
    stride_q_row,
    stride_q_head,
    stride_page,
    stride_slot,
    stride_kv_head,
    stride_table,
    stride_out_row,
    stride_out_head,
    capped: tl.constexpr,
    windowed: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    dim_padded: tl.constexpr,
    page_size: tl.constexpr,
    rows: tl.constexpr,
    tile: tl.constexpr,
):
    """Program (KV head, block). `blocks`: int32 [num_blocks, 2], the row of the batch and its first query."""
    kv_head, block = tl.program_id(0), tl.program_id(1)
    row = tl.load(blocks_ptr + 2 * block)
    first_query = tl.load(blocks_ptr + 2 * block + 1)
    begin_token = tl.load(q_start_ptr + row)
    q_len = tl.load(q_start_ptr + row + 1) - begin_token
    kv_len = tl.load(kv_lens_ptr + row)
    queries_per_block = rows // group
    lanes = tl.arange(0, rows)
    queries = first_query + lanes // group
    real_rows = (lanes < queries_per_block * group) & (queries < q_len)
    positions = kv_len - q_len + queries
    dims = tl.arange(0, dim_padded)
    real_dims = dims < head_dim
    q_heads = kv_head * group + lanes % group
    tokens = (begin_token + queries).to(tl.int64)
    real = real_rows[:, None] & real_dims[None, :]
    q_at = tokens[:, None] * stride_q_row + q_heads[:, None] * stride_q_head + dims[None, :]
    q = tl.load(q_ptr + q_at, mask=real, other=0.0)

    first_position = kv_len - q_len + first_query
    end = tl.minimum(first_position + queries_per_block, kv_len)
    begin = 0
    if windowed:
        begin = tl.maximum(first_position - window + 1, 0) // tile * tile
    most = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    acc = tl.zeros([rows, dim_padded], tl.float32)
    table_row = page_table_ptr + row.to(tl.int64) * stride_table
    for first_key in range(begin, end, tile):
        keys = first_key + tl.arange(0, tile)
        valid = keys < end
        at = pool_offsets(table_row, keys, valid, first_key, stride_page, stride_slot, page_size, tile)
        at = at[:, None] + kv_head * stride_kv_head + dims[None, :]
        loaded = valid[:, None] & real_dims[None, :]
        k = tl.load(k_ptr + at, mask=loaded, other=0.0)
        v = tl.load(v_ptr + at, mask=loaded, other=0.0)
        scores = scores_of(q, k, scale, softcap, capped)
        seen = valid[None, :] & (keys[None, :] <= positions[:, None])
        if windowed:
            seen = seen & (keys[None, :] > positions[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        most, total, acc = add_tile(scores, v, most, total, acc)
    acc = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    out_at = tokens[:, None] * stride_out_row + q_heads[:, None] * stride_out_head + dims[None, :]
    tl.store(out_ptr + out_at, acc.to(out_ptr.dtype.element_ty), mask=real)
