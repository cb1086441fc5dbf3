"""The flash-attention family without a GPU: functions with the signatures of the real ones that check all they are
given, as those do or as their kernels need it, and compute by the reference.

What a real library gets wrong is wrong here too: where NaN in the tail of a page leaks, it leaks.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.attention import AttnBatch, AttnConfig
from kernels.reference import reference_attention

Attend = Callable[..., Tensor]


def keywords_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """Fails on positional arguments: the libraries differ in their order."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        assert not args, "arguments go by keyword"
        signature.bind(**kwargs)  # TypeError for an unknown or a missing one
        return function(**kwargs)

    return checked


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    table: Tensor,
    scale: float,
    window: tuple[int | None, int | None],
    softcap: float,
    page_multiple: int,
    head_multiple: int = 8,
    leaks: bool = False,
) -> Tensor:
    """What all of them compute: q [num_tokens, heads, dim] over pools [pages, page, KV heads, dim]."""
    pages, page, kv_heads, dim = k.shape
    assert q.ndim == 3
    assert q.dtype in (torch.float16, torch.bfloat16)
    assert k.dtype is v.dtype is q.dtype
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert page % page_multiple == 0
    assert dim % head_multiple == 0
    assert dim <= 256
    assert table.dtype is torch.int32
    assert table.stride(-1) == 1
    assert len(table) == len(q_lens) == len(kv_lens)
    assert 0 <= int(table.min()) <= int(table.max()) < pages, "an illegal access, on a GPU"
    assert sum(q_lens) == len(q)
    assert window[1] in (-1, None) if window[0] in (-1, None) else window[1] == 0
    visible = None if window[0] in (-1, None) else window[0] + 1
    config = AttnConfig(
        num_q_heads=q.shape[1],
        num_kv_heads=kv_heads,
        head_dim=dim,
        dtype=q.dtype,
        device=q.device,
        page_size=page,
        scale=scale,
        sliding_window=visible,
        softcap=softcap,
    )
    batch = AttnBatch(list(q_lens), list(kv_lens), table.long(), torch.empty(0, dtype=torch.int64), 0)
    out = reference_attention(q, k, v, batch, config).to(q.dtype)
    if leaks:
        begin = 0
        for row, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
            if kv_len and v[table[row, (kv_len - 1) // page].long()].isnan().any():
                out[begin : begin + q_len] = torch.nan
            begin += q_len
    return out


def sums(lens: Tensor, rows: int) -> list[int]:
    """The lengths whose sums these are."""
    assert lens.dtype is torch.int32
    assert lens.shape == (rows + 1,)
    assert lens.is_contiguous()
    assert int(lens[0]) == 0
    return lens.diff().tolist()


def lengths(lens: Tensor, rows: int) -> list[int]:
    assert lens.dtype is torch.int32
    assert lens.shape == (rows,)
    return lens.tolist()


def bounds(q_lens: Sequence[int], kv_lens: Sequence[int], max_q: int, max_kv: int) -> None:
    """Kernels size their grids and buffers by these."""
    assert type(max_q) is int
    assert type(max_kv) is int
    assert max(q_lens) <= max_q
    assert max(kv_lens) <= max_kv


def _fa2(page_multiple: int, head_multiple: int) -> dict[str, Callable[..., Any]]:
    """Both functions of vllm-flash-attn 2.6.2, which are upstream's of that time."""

    @keywords_only
    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None, *, out=None,
    ):  # fmt: skip
        rows = len(block_table)
        q_lens, kv_lens = sums(cu_seqlens_q, rows), sums(cu_seqlens_k, rows)
        bounds(q_lens, kv_lens, max_seqlen_q, max_seqlen_k)
        assert causal
        assert out is None, "it is not honoured where heads share keys"
        assert type(window_size) is tuple
        return attend(
            q, k, v, q_lens=q_lens, kv_lens=kv_lens, table=block_table, scale=softmax_scale, window=window_size,
            softcap=softcap, page_multiple=page_multiple, head_multiple=head_multiple,
        )  # fmt: skip

    @keywords_only
    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
        rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False, *, out=None,
    ):  # fmt: skip
        rows, one = q.shape[:2]
        assert one == 1
        assert causal
        assert num_splits in (0, 1)
        return attend(
            q[:, 0], k_cache, v_cache, q_lens=[1] * rows, kv_lens=lengths(cache_seqlens, rows), table=block_table,
            scale=softmax_scale, window=window_size, softcap=softcap, page_multiple=page_multiple,
            head_multiple=head_multiple,
        )[:, None]  # fmt: skip

    return {
        "flash_attn_varlen_func": flash_attn_varlen_func,
        "flash_attn_with_kvcache": flash_attn_with_kvcache,
    }


def _vllm() -> dict[str, Callable[..., Any]]:
    @keywords_only
    def flash_attn_varlen_func(
        q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, q_v=None, dropout_p=0.0,
        softmax_scale=None, causal=False, window_size=None, softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None, return_softmax_lse=False, out=None, scheduler_metadata=None,
        q_descale=None, k_descale=None, v_descale=None, num_splits=0, fa_version=2, s_aux=None, cp_world_size=1,
        cp_rank=0, cp_tot_seqused_k=None,
    ):  # fmt: skip
        assert cu_seqlens_k is None, "lengths of pages are told by seqused_k alone"
        rows = len(block_table)
        q_lens, kv_lens = sums(cu_seqlens_q, rows), lengths(seqused_k, rows)
        bounds(q_lens, kv_lens, max_seqlen_q, max_seqlen_k)
        assert causal
        assert type(window_size) is list
        return attend(
            q, k, v, q_lens=q_lens, kv_lens=kv_lens, table=block_table, scale=softmax_scale, window=tuple(window_size),
            softcap=softcap, page_multiple=16, leaks=fa_version == 3,
        )  # fmt: skip

    def is_fa_version_supported(fa_version: int, device: Any = None) -> bool:
        assert fa_version in (2, 3, 4)
        return True

    return {"flash_attn_varlen_func": flash_attn_varlen_func, "is_fa_version_supported": is_fa_version_supported}


def _fa3() -> dict[str, Callable[..., Any]]:
    @keywords_only
    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None,
        max_seqlen_q=None, rotary_seqlens=None, q_descale=None, k_descale=None, v_descale=None, softmax_scale=None,
        causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True,
        scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False,
    ):  # fmt: skip
        rows = len(page_table)
        q_lens, kv_lens = sums(cu_seqlens_q, rows), lengths(cache_seqlens, rows)
        assert max(q_lens) <= max_seqlen_q
        assert causal
        return attend(
            q, k_cache, v_cache, q_lens=q_lens, kv_lens=kv_lens, table=page_table, scale=softmax_scale,
            window=window_size, softcap=softcap, page_multiple=1, leaks=True,
        )  # fmt: skip

    return {"flash_attn_with_kvcache": flash_attn_with_kvcache}


def _fa4() -> dict[str, Callable[..., Any]]:
    @keywords_only
    def flash_attn_varlen_func(
        q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, min_seqlen_k=None,
        seqused_q=None, seqused_k=None, page_table=None, softmax_scale=None, causal=False, window_size=(None, None),
        learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, return_lse=False,
    ):  # fmt: skip
        assert cu_seqlens_k is None, "forbidden with pages"
        rows = len(page_table)
        q_lens, kv_lens = sums(cu_seqlens_q, rows), lengths(seqused_k, rows)
        bounds(q_lens, kv_lens, max_seqlen_q, max_seqlen_k)
        assert causal
        assert -1 not in window_size, "open is None here"
        out = attend(
            q, k, v, q_lens=q_lens, kv_lens=kv_lens, table=page_table, scale=softmax_scale, window=window_size,
            softcap=softcap, page_multiple=1, leaks=True,
        )  # fmt: skip
        return out, None

    return {"flash_attn_varlen_func": flash_attn_varlen_func}


FAKES: dict[str, Callable[[], dict[str, Callable[..., Any]]]] = {
    "vllm_flash_attn": lambda: _fa2(16, 32),
    "vllm.vllm_flash_attn": _vllm,
    "flash_attn_interface": _fa3,
    "flash_attn.flash_attn_interface": lambda: _fa2(256, 8),
    "flash_attn.cute": _fa4,
}
"""What each module offers."""


def install(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """Put the fake module `name` where it is imported from, with its parents."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    module = ModuleType(name)
    vars(module).update(FAKES[name]())
    monkeypatch.setitem(sys.modules, name, module)
    return module
