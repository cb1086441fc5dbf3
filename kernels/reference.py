"""Paged attention in fp64, one row at a time, page by page: slow, plain, and what tests compare with."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention import AttnBatch, AttnConfig


def reference_attention(q: Tensor, k_pool: Tensor, v_pool: Tensor, batch: AttnBatch, config: AttnConfig) -> Tensor:
    """float64 [num_tokens, num_q_heads, head_dim]."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    group = config.num_q_heads // config.num_kv_heads
    start = 0
    for row, (q_len, kv_len) in enumerate(zip(batch.q_lens, batch.kv_lens, strict=True)):
        keys, values = _walk(k_pool, batch, row, kv_len, config), _walk(v_pool, batch, row, kv_len, config)
        for i in range(q_len):
            seen = kv_len - q_len + i + 1
            for head in range(config.num_q_heads):
                kv_head = head // group
                scores = keys[:seen, kv_head] @ q[start + i, head].double() * config.scale
                out[start + i, head] = torch.softmax(scores, dim=0) @ values[:seen, kv_head]
        start += q_len
    return out


def _walk(pool: Tensor, batch: AttnBatch, row: int, kv_len: int, config: AttnConfig) -> Tensor:
    """float64 [kv_len, num_kv_heads, head_dim]."""
    size = config.page_size
    where = [(int(batch.page_table[row, position // size]), position % size) for position in range(kv_len)]
    return torch.stack([pool[page, offset] for page, offset in where]).double()
