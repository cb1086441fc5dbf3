"""Paged attention in plain torch: the default on CPU, and what every other backend is held to on any device.

Keys and values are gathered token by token, padding from the null page: what lies in a page beyond a row's length
(stale or NaN) is never read. Query heads that share a KV head see it through a view that repeats it without a copy,
or, with one query, are folded into the query length: scaled_dot_product_attention with one query and `enable_gqa` is
up to eight times slower on CPU, and torch 2.4 has no `enable_gqa`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention import AttentionBackend, AttnBatch, AttnConfig

MAX_PADDING = 2.0
"""Decodes share one call as long as the longest has at most this many times the keys of the shortest."""


@dataclass(slots=True)
class _Decodes:
    """Rows with one query that are attended in one call, padded to the longest of them.

    `rows`: int64 [num_rows], which tokens of the step they are. `slots`: int64 [num_rows * longest].
    `mask`: bool [num_rows, 1, 1, longest], None if all are equally long.
    """

    rows: Tensor
    slots: Tensor
    mask: Tensor | None


@dataclass(slots=True)
class _Prompt:
    """A row with several queries, from token `start` of the step on. `slots`: int64 [kv_len].

    `mask`: bool [q_len, kv_len], None when plain causal masking does it.
    """

    start: int
    q_len: int
    slots: Tensor
    mask: Tensor | None


@dataclass(slots=True)
class _Plan:
    decodes: list[_Decodes]
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
        decodes = [self._plan_decodes(batch, rows) for rows in _of_similar_length(batch.kv_lens[: batch.num_decode])]
        prompts, start = [], batch.num_decode
        for row in range(batch.num_decode, len(batch.q_lens)):
            prompts.append(self._plan_prompt(batch, row, start))
            start += batch.q_lens[row]
        batch.plan = _Plan(decodes, prompts)

    def forward(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, batch: AttnBatch) -> Tensor:
        plan: _Plan = batch.plan
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for decodes in plan.decodes:
            out[decodes.rows] = self._decode(q[decodes.rows], k_pool, v_pool, decodes)
        for prompt in plan.prompts:
            tokens = slice(prompt.start, prompt.start + prompt.q_len)
            out[tokens] = self._prompt(q[tokens], k_pool, v_pool, prompt)
        return out

    def _plan_decodes(self, batch: AttnBatch, rows: list[int]) -> _Decodes:
        device = batch.page_table.device
        lens = [batch.kv_lens[row] for row in rows]
        longest = max(lens)
        which = torch.tensor(rows, dtype=torch.int64, device=device)
        slots = self._slots_of(batch.page_table[which], longest)
        if min(lens) == longest:
            return _Decodes(which, slots.reshape(-1), None)
        positions = torch.arange(longest, device=device)
        visible = positions[None, :] < torch.tensor(lens, dtype=torch.int64, device=device)[:, None]
        return _Decodes(which, torch.where(visible, slots, 0).reshape(-1), visible[:, None, None, :])

    def _plan_prompt(self, batch: AttnBatch, row: int, start: int) -> _Prompt:
        q_len, kv_len = batch.q_lens[row], batch.kv_lens[row]
        slots = self._slots_of(batch.page_table[row : row + 1], kv_len)[0]
        mask = None if q_len == kv_len else _lower_right(q_len, kv_len, batch.page_table.device)
        return _Prompt(start, q_len, slots, mask)

    def _decode(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, decodes: _Decodes) -> Tensor:
        config, rows = self.config, q.shape[0]
        group = config.num_q_heads // config.num_kv_heads
        k = self._gather(k_pool, decodes.slots).unflatten(0, (rows, -1)).transpose(1, 2)
        v = self._gather(v_pool, decodes.slots).unflatten(0, (rows, -1)).transpose(1, 2)
        folded = q.reshape(rows, config.num_kv_heads, group, config.head_dim)
        out = F.scaled_dot_product_attention(folded, k, v, attn_mask=decodes.mask, scale=config.scale)
        return out.reshape(rows, config.num_q_heads, config.head_dim)

    def _prompt(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, prompt: _Prompt) -> Tensor:
        """KV heads are the batch, their query heads the heads: [num_kv_heads, group, length, head_dim]."""
        config = self.config
        group = config.num_q_heads // config.num_kv_heads
        k = self._gather(k_pool, prompt.slots).transpose(0, 1)[:, None].expand(-1, group, -1, -1)
        v = self._gather(v_pool, prompt.slots).transpose(0, 1)[:, None].expand(-1, group, -1, -1)
        grouped = q.reshape(prompt.q_len, config.num_kv_heads, group, config.head_dim).permute(1, 2, 0, 3)
        causal = prompt.mask is None
        out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=prompt.mask, is_causal=causal, scale=config.scale)
        return out.permute(2, 0, 1, 3).reshape(prompt.q_len, config.num_q_heads, config.head_dim)

    def _gather(self, pool: Tensor, slots: Tensor) -> Tensor:
        return pool.view(-1, self.config.num_kv_heads, self.config.head_dim).index_select(0, slots)

    def _slots_of(self, page_table: Tensor, length: int) -> Tensor:
        """Slots int64 [num_rows, length] of the first positions of each row."""
        size = self.config.page_size
        positions = torch.arange(length, device=page_table.device)
        return page_table[:, positions // size] * size + positions % size


def _of_similar_length(kv_lens: Sequence[int]) -> list[list[int]]:
    """Rows in groups whose padding stays within MAX_PADDING, so that one long context does not make every short one
    cost as much."""
    groups: list[list[int]] = []
    for row in sorted(range(len(kv_lens)), key=lambda row: kv_lens[row], reverse=True):
        if not groups or kv_lens[groups[-1][0]] > MAX_PADDING * kv_lens[row]:
            groups.append([])
        groups[-1].append(row)
    return groups


def _lower_right(q_len: int, kv_len: int, device: torch.device) -> Tensor:
    """bool [q_len, kv_len]: which keys each query sees."""
    queries = torch.arange(kv_len - q_len, kv_len, device=device)
    return torch.arange(kv_len, device=device)[None, :] <= queries[:, None]
