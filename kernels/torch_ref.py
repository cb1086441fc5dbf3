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
    """A row with several queries, from token `start` of the step on. `slots`: int64 [num_keys], of the keys that any of
    them sees.

    `mask`: bool [q_len, num_keys], None when plain causal masking does it.
    """

    start: int
    q_len: int
    slots: Tensor
    mask: Tensor | None


@dataclass(slots=True)
class _Plan:
    """`empty`: int64, which tokens of the step see no key; None if there are none."""

    decodes: list[_Decodes]
    prompts: list[_Prompt]
    empty: Tensor | None


class TorchAttention(AttentionBackend):
    name = "torch"
    devices = ("cpu", "cuda")

    @classmethod
    def unavailable(cls) -> str | None:
        return None

    @classmethod
    def unsupported(cls, config: AttnConfig) -> list[str]:
        return []

    def plan(self, batch: AttnBatch) -> None:
        lens = [kv_len - self._first_seen(kv_len - 1) for kv_len in batch.kv_lens[: batch.num_decode]]
        decodes = [self._plan_decodes(batch, rows) for rows in _of_similar_length(lens)]
        prompts, start = [], batch.num_decode
        for row in range(batch.num_decode, len(batch.q_lens)):
            if batch.q_lens[row]:
                prompts.append(self._plan_prompt(batch, row, start))
            start += batch.q_lens[row]
        empty = [row for row, kv_len in enumerate(lens) if not kv_len]
        device = batch.page_table.device
        batch.plan = _Plan(decodes, prompts, torch.tensor(empty, device=device) if empty else None)

    def forward(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, batch: AttnBatch) -> Tensor:
        plan: _Plan = batch.plan
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for decodes in plan.decodes:
            out[decodes.rows] = self._decode(q[decodes.rows], k_pool, v_pool, decodes)
        for prompt in plan.prompts:
            tokens = slice(prompt.start, prompt.start + prompt.q_len)
            out[tokens] = self._prompt(q[tokens], k_pool, v_pool, prompt)
        if plan.empty is not None:
            out[plan.empty] = 0
        return out

    def _plan_decodes(self, batch: AttnBatch, rows: list[int]) -> _Decodes:
        device = batch.page_table.device
        which = torch.tensor(rows, dtype=torch.int64, device=device)
        first = [self._first_seen(batch.kv_lens[row] - 1) for row in rows]
        lens = [batch.kv_lens[row] - begin for row, begin in zip(rows, first, strict=True)]
        longest = max(lens)
        begins = torch.tensor(first, dtype=torch.int64, device=device)[:, None]
        positions = torch.arange(longest, device=device)
        if min(lens) == longest:
            return _Decodes(which, self._slots_of(batch.page_table[which], begins + positions).reshape(-1), None)
        visible = positions[None, :] < torch.tensor(lens, dtype=torch.int64, device=device)[:, None]
        slots = self._slots_of(batch.page_table[which], torch.where(visible, begins + positions, 0))
        return _Decodes(which, torch.where(visible, slots, 0).reshape(-1), visible[:, None, None, :])

    def _plan_prompt(self, batch: AttnBatch, row: int, start: int) -> _Prompt:
        q_len, kv_len, device = batch.q_lens[row], batch.kv_lens[row], batch.page_table.device
        first = self._first_seen(kv_len - q_len)
        positions = torch.arange(first, kv_len, device=device)
        slots = self._slots_of(batch.page_table[row : row + 1], positions[None, :])[0]
        window = self.config.sliding_window
        if q_len == kv_len and (window is None or window >= kv_len):
            return _Prompt(start, q_len, slots, None)
        queries = torch.arange(kv_len - q_len, kv_len, device=device)[:, None]
        mask = positions[None, :] <= queries
        return _Prompt(start, q_len, slots, mask if window is None else mask & (positions[None, :] > queries - window))

    def _first_seen(self, position: int) -> int:
        """The first key that a query at `position` sees."""
        window = self.config.sliding_window
        return 0 if window is None else max(0, position - window + 1)

    def _decode(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, decodes: _Decodes) -> Tensor:
        config, rows = self.config, q.shape[0]
        k = self._gather(k_pool, decodes.slots).unflatten(0, (rows, -1)).transpose(1, 2)
        v = self._gather(v_pool, decodes.slots).unflatten(0, (rows, -1)).transpose(1, 2)
        folded = q.reshape(rows, config.num_kv_heads, config.group, config.head_dim)
        return self._attend(folded, k, v, decodes.mask, False).reshape(rows, config.num_q_heads, config.head_dim)

    def _prompt(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, prompt: _Prompt) -> Tensor:
        """KV heads are the batch, their query heads the heads: [num_kv_heads, group, length, head_dim]."""
        config = self.config
        k = self._gather(k_pool, prompt.slots).transpose(0, 1)[:, None].expand(-1, config.group, -1, -1)
        v = self._gather(v_pool, prompt.slots).transpose(0, 1)[:, None].expand(-1, config.group, -1, -1)
        grouped = q.reshape(prompt.q_len, config.num_kv_heads, config.group, config.head_dim).permute(1, 2, 0, 3)
        out = self._attend(grouped, k, v, prompt.mask, prompt.mask is None)
        return out.permute(2, 0, 1, 3).reshape(prompt.q_len, config.num_q_heads, config.head_dim)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """q: [batch, heads, queries, head_dim]; k, v: [batch, heads, keys, head_dim]. `causal`: queries and keys are
        the same positions."""
        config = self.config
        if not config.softcap:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=config.scale)
        scores = (q @ k.transpose(-2, -1)).float() * config.scale
        scores = config.softcap * torch.tanh(scores / config.softcap)
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return torch.softmax(scores, dim=-1).to(v.dtype) @ v

    def _gather(self, pool: Tensor, slots: Tensor) -> Tensor:
        return pool.view(-1, self.config.num_kv_heads, self.config.head_dim).index_select(0, slots)

    def _slots_of(self, page_table: Tensor, positions: Tensor) -> Tensor:
        """Slots int64 [num_rows, length] of positions [num_rows or 1, length]."""
        size = self.config.page_size
        pages = page_table.gather(1, (positions // size).expand(len(page_table), -1))
        return pages * size + positions % size


def _of_similar_length(kv_lens: Sequence[int]) -> list[list[int]]:
    """Rows with keys, in groups whose padding stays within MAX_PADDING, so that one long context does not make every
    short one cost as much."""
    groups: list[list[int]] = []
    for row in sorted(
        (row for row, kv_len in enumerate(kv_lens) if kv_len), key=lambda row: kv_lens[row], reverse=True
    ):
        if not groups or kv_lens[groups[-1][0]] > MAX_PADDING * kv_lens[row]:
            groups.append([])
        groups[-1].append(row)
    return groups
