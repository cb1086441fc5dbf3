"""Paged attention by xformers: decodes over pages in its split-K kernel, prompts over keys gathered from them.

The split of keys is the library's own and may depend on the batch: a row's last bit is not promised (rule I3).
Its kernels over pages know one mask only, all keys of a row; causal rows of different lengths go through torch's own
flash attention, which wants them packed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from kernels.attention import AttentionBackend, AttnBatch, AttnConfig
from kernels.lens import device_lens, to_device

HEAD_DIMS = (16, 32, 64, 128, 256)
LEAST_CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class _Library:
    fmha: Any
    attn_bias: Any
    split_k: Any


@lru_cache(maxsize=1)
def _library() -> _Library:
    """Raises whatever importing it raises. It warns that attention will not be available when an extension is missing
    that attention does not use: that is not passed on."""
    log = logging.getLogger("xformers")
    before = log.disabled
    log.disabled = True  # Not its level: it sets that itself.
    try:
        from xformers.ops import fmha
        from xformers.ops.fmha import attn_bias, triton_splitk
    finally:
        log.disabled = before
    return _Library(fmha, attn_bias, triton_splitk.FwOp)


@dataclass(slots=True)
class _Plan:
    """Masks are built once per step, from lengths that the host knows.

    `decode_rows`, `prompt_tokens`: which tokens of the step each call computes. `decode_mask` is None if there are none
    with keys, `prompt_mask` likewise. `slots`: int64, of all keys of the prompts, row after row.
    """

    decode_rows: Tensor
    decode_mask: Any
    prompt_tokens: slice
    prompt_mask: Any
    slots: Tensor
    any_empty: bool


class XformersAttention(AttentionBackend):
    name = "xformers"
    page_multiple = 64

    @classmethod
    def unavailable(cls) -> str | None:
        try:
            library = _library()
        except Exception as error:  # A broken installation raises what it likes.
            return f"xformers cannot be imported: {type(error).__name__}: {error}".splitlines()[0]
        return None if library.split_k.is_available() else "the split-K kernel of xformers is not available"

    @classmethod
    def unsupported(cls, config: AttnConfig) -> list[str]:
        problems = []
        if config.dtype not in (torch.float16, torch.bfloat16):
            problems.append(f"{config.dtype} is neither float16 nor bfloat16")
        if config.head_dim not in HEAD_DIMS:
            problems.append(f"head_dim {config.head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}")
        if config.sliding_window is not None:
            problems.append("it knows no sliding window over pages")
        if config.softcap:
            problems.append("it knows no soft cap")
        capability = torch.cuda.get_device_capability(config.device)
        if capability < LEAST_CAPABILITY:
            problems.append(f"compute capability {capability[0]}.{capability[1]} is less than 8.0")
        return problems

    def plan(self, batch: AttnBatch) -> None:
        decodes, lens = batch.num_decode, batch.kv_lens
        bias, device = _library().attn_bias, self.config.device
        batch.lens = device_lens(batch)
        rows = [row for row in range(decodes) if lens[row]]
        which = to_device(torch.tensor(rows, dtype=torch.int64), device)
        prompts = [row for row in range(decodes, len(lens)) if batch.q_lens[row]]
        batch.plan = _Plan(
            decode_rows=which,
            decode_mask=bias.PagedBlockDiagonalPaddedKeysMask.from_seqlens(
                q_seqlen=[1] * len(rows),
                kv_seqlen=[lens[row] for row in rows],
                block_tables=batch.lens.page_table.index_select(0, which),
                page_size=self.config.page_size,
                device=device,
            )
            if rows
            else None,
            prompt_tokens=slice(decodes, sum(batch.q_lens)),
            prompt_mask=bias.BlockDiagonalCausalFromBottomRightMask.from_seqlens(
                q_seqlen=[batch.q_lens[row] for row in prompts],
                kv_seqlen=[lens[row] for row in prompts],
                device=device,
            )
            if prompts
            else None,
            slots=self._slots(batch, prompts),
            any_empty=len(rows) < decodes,
        )

    def _slots(self, batch: AttnBatch, rows: list[int]) -> Tensor:
        """int64 [sum of the rows' kv_lens]."""
        size, device = self.config.page_size, self.config.device
        lens = [batch.kv_lens[row] for row in rows]
        total = sum(lens)
        lengths = to_device(torch.tensor(lens, dtype=torch.int64), device)
        begins = to_device(torch.tensor([0, *accumulate(lens)][: len(lens)], dtype=torch.int64), device)
        which = to_device(torch.tensor(rows, dtype=torch.int64), device)
        which = which.repeat_interleave(lengths, output_size=total)
        positions = torch.arange(total, device=device) - begins.repeat_interleave(lengths, output_size=total)
        return batch.page_table[which, positions // size] * size + positions % size

    def forward(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, batch: AttnBatch) -> Tensor:
        plan: _Plan = batch.plan
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if plan.any_empty:
            out[: batch.num_decode] = 0
        if plan.decode_mask is not None:
            queries = q.index_select(0, plan.decode_rows)
            pools = (k_pool.flatten(0, 1), v_pool.flatten(0, 1))
            out[plan.decode_rows] = self._call(queries, *pools, plan.decode_mask, _library().split_k)
        if plan.prompt_mask is not None:
            keys, values = (pool.flatten(0, 1).index_select(0, plan.slots) for pool in (k_pool, v_pool))
            out[plan.prompt_tokens] = self._call(q[plan.prompt_tokens], keys, values, plan.prompt_mask, None)
        return out

    def _call(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, op: Any) -> Tensor:
        """q, result: [num_queries, num_q_heads, head_dim]; k, v: [num_keys, num_kv_heads, head_dim].

        Heads that share keys see them through an axis of stride 0: that is how the library knows.
        """
        config = self.config
        grouped = q.reshape(1, len(q), config.num_kv_heads, config.group, config.head_dim)
        shared = (-1, -1, -1, config.group, -1)
        out: Tensor = _library().fmha.memory_efficient_attention_forward(
            query=grouped,
            key=k[None, :, :, None].expand(shared),
            value=v[None, :, :, None].expand(shared),
            attn_bias=mask,
            scale=config.scale,
            op=op,
        )
        return out.reshape(q.shape)
