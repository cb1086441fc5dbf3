"""Paged attention in plain torch: the default on CPU, and what every other backend is held to on any device.

Keys and values are gathered token by token, padding from the null page: what lies in a page beyond a row's length (stale
or NaN) is never read. Query heads that share a KV head are folded into the query length: scaled_dot_product_attention
with one query and `enable_gqa` is up to eight times slower on CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention import AttentionBackend, AttnBatch, AttnConfig


@dataclass(slots=True)
class _Prompt:
    """A row with several queries. `mask`: bool [q_len, kv_len], None when plain causal masking does it."""

    start: int
    q_len: int
    slots: Tensor
    mask: Tensor | None


@dataclass(slots=True)
class _Plan:
    """`decode_slots`: int64 [num_decode * longest]; `decode_mask`: bool [num_decode, 1, 1, longest], None if all are
    equally long."""

    decode_slots: Tensor
    decode_mask: Tensor | None
    prompts: list[_Prompt]


class TorchAttention(AttentionBackend):
    name = "torch"
    page_multiple = 1

    @classmethod
    def unavailable(cls) -> str | None:
        return None

    @classmethod
    def unsupported(cls, config: AttnConfig) -> list[str]:
        if config.num_q_heads % config.num_kv_heads:
            return [f"{config.num_q_heads} query heads cannot share {config.num_kv_heads} KV heads evenly"]
        return []

    def plan(self, batch: AttnBatch) -> None:
        device = batch.page_table.device
        decode_lens = torch.tensor(batch.kv_lens[: batch.num_decode], dtype=torch.int64)
        longest = int(decode_lens.max()) if batch.num_decode else 0
        positions = torch.arange(max(batch.kv_lens, default=0))
        slots = self._slots_of(batch.page_table[: batch.num_decode].cpu(), positions[:longest])
        visible = positions[None, :longest] < decode_lens[:, None]
        slots = torch.where(visible, slots, 0)
        mask = None if bool(visible.all()) else visible[:, None, None, :].to(device)
        prompts, start = [], batch.num_decode
        for row in range(batch.num_decode, len(batch.q_lens)):
            q_len, kv_len = batch.q_lens[row], batch.kv_lens[row]
            row_slots = self._slots_of(batch.page_table[row : row + 1].cpu(), positions[:kv_len])[0]
            causal = None if q_len == kv_len else _lower_right(q_len, kv_len).to(device)
            prompts.append(_Prompt(start, q_len, row_slots.to(device), causal))
            start += q_len
        batch.plan = _Plan(slots.reshape(-1).to(device), mask, prompts)

    def forward(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, batch: AttnBatch) -> Tensor:
        plan: _Plan = batch.plan
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        if batch.num_decode:
            out[: batch.num_decode] = self._decode(q[: batch.num_decode], k_pool, v_pool, plan)
        for prompt in plan.prompts:
            rows = slice(prompt.start, prompt.start + prompt.q_len)
            out[rows] = self._prompt(q[rows], k_pool, v_pool, prompt)
        return out

    def _decode(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, plan: _Plan) -> Tensor:
        config, rows = self.config, q.shape[0]
        group = config.num_q_heads // config.num_kv_heads
        k = self._gather(k_pool, plan.decode_slots).unflatten(0, (rows, -1)).transpose(1, 2)
        v = self._gather(v_pool, plan.decode_slots).unflatten(0, (rows, -1)).transpose(1, 2)
        folded = q.reshape(rows, config.num_kv_heads, group, config.head_dim)
        out = F.scaled_dot_product_attention(folded, k, v, attn_mask=plan.decode_mask, scale=config.scale)
        return out.reshape(rows, config.num_q_heads, config.head_dim)

    def _prompt(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, prompt: _Prompt) -> Tensor:
        k = self._gather(k_pool, prompt.slots).transpose(0, 1)[None]
        v = self._gather(v_pool, prompt.slots).transpose(0, 1)[None]
        grouped = self.config.num_q_heads != self.config.num_kv_heads
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k,
            v,
            attn_mask=prompt.mask,
            is_causal=prompt.mask is None,
            scale=self.config.scale,
            enable_gqa=grouped,
        )
        return out[0].transpose(0, 1)

    def _gather(self, pool: Tensor, slots: Tensor) -> Tensor:
        return pool.view(-1, self.config.num_kv_heads, self.config.head_dim).index_select(0, slots)

    def _slots_of(self, page_table: Tensor, positions: Tensor) -> Tensor:
        """Slots int64 [num_rows, num_positions] of these positions in each row."""
        size = self.config.page_size
        return page_table[:, positions // size] * size + positions % size


def _lower_right(q_len: int, kv_len: int) -> Tensor:
    """bool [q_len, kv_len]: which keys each query sees."""
    return torch.arange(kv_len)[None, :] <= torch.arange(kv_len - q_len, kv_len)[:, None]
