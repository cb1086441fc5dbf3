"""K and V of a step's tokens into the pool, both in one launch."""

# Triton reads annotations of kernels as code, and knows tl.constexpr only.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def write_kernel(
    k_ptr,
    v_ptr,
    k_pool_ptr,
    v_pool_ptr,
    slots_ptr,
    stride_k_token,
    stride_k_head,
    stride_v_token,
    stride_v_head,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    numbers_padded: tl.constexpr,
):
    """Program: a token. Its slot is [num_kv_heads, head_dim] and dense; a negative slot takes nothing."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        numbers = tl.arange(0, numbers_padded)
        real = numbers < num_kv_heads * head_dim
        heads, dims = numbers // head_dim, numbers % head_dim
        k = tl.load(k_ptr + token * stride_k_token + heads * stride_k_head + dims, mask=real)
        v = tl.load(v_ptr + token * stride_v_token + heads * stride_v_head + dims, mask=real)
        to = slot * num_kv_heads * head_dim + numbers
        tl.store(k_pool_ptr + to, k, mask=real)
        tl.store(v_pool_ptr + to, v, mask=real)
