"""Paged attention in fp64, one row at a time, page by page: slow, plain, and what every backend is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention import AttnBatch, AttnConfig


def reference_attention(q: Tensor, k_pool: Tensor, v_pool: Tensor, batch: AttnBatch, config: AttnConfig) -> Tensor:
    """float64 [num_tokens, num_q_heads, head_dim]."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    start = 0
    for row, (q_len, kv_len) in enumerate(zip(batch.q_lens, batch.kv_lens, strict=True)):
        if q_len and kv_len:
            keys, values = _walk(k_pool, batch, row, kv_len, config), _walk(v_pool, batch, row, kv_len, config)
            for i in range(q_len):
                last = kv_len - q_len + i
                first = 0 if config.sliding_window is None else max(0, last - config.sliding_window + 1)
                seen = slice(first, last + 1)
                out[start + i] = _attend(q[start + i], keys[seen], values[seen], config)
        start += q_len
    return out


def _attend(q: Tensor, keys: Tensor, values: Tensor, config: AttnConfig) -> Tensor:
    """One query [num_q_heads, head_dim] over all of keys and values [length, num_kv_heads, head_dim]."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for head in range(config.num_q_heads):
        kv_head = head // config.group
        scores = keys[:, kv_head] @ q[head].double() * config.scale
        if config.softcap:
            scores = config.softcap * torch.tanh(scores / config.softcap)
        out[head] = torch.softmax(scores, dim=0) @ values[:, kv_head]
    return out


def _walk(pool: Tensor, batch: AttnBatch, row: int, kv_len: int, config: AttnConfig) -> Tensor:
    """float64 [kv_len, num_kv_heads, head_dim]."""
    size = config.page_size
    table = batch.page_table[row].tolist()
    where = [(table[position // size], position % size) for position in range(kv_len)]
    return torch.stack([pool[page, offset] for page, offset in where]).double()
