"""K and V of a step's tokens into the pool, both in one launch."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def write_kernel(
    k_ptr: Any,
    v_ptr: Any,
    k_pool_ptr: Any,
    v_pool_ptr: Any,
    slots_ptr: Any,
    stride_k_token: Any,
    stride_k_head: Any,
    stride_v_token: Any,
    stride_v_head: Any,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    numbers_padded: tl.constexpr,
) -> None:
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
