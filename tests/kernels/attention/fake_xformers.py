"""xformers without a GPU: masks and the one function that is used, with the signatures of 0.0.27.post2 and 0.0.35."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.attention.fake_flash import attend, keywords_only


@dataclass
class PagedMask:
    q_lens: list[int]
    kv_lens: list[int]
    table: Tensor
    page_size: int

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Any, kv_seqlen: Any, block_tables: Tensor, page_size: int, *, device: Any = None
    ) -> PagedMask:
        assert type(q_seqlen) is type(kv_seqlen) is list, "lengths of the host: no step waits for the GPU"
        assert len(q_seqlen) == len(kv_seqlen) == len(block_tables)
        assert block_tables.dtype is torch.int32
        assert min(kv_seqlen) > 0
        return cls(q_seqlen, kv_seqlen, block_tables, page_size)


@dataclass
class CausalMask:
    q_lens: list[int]
    kv_lens: list[int]

    @classmethod
    def from_seqlens(cls, q_seqlen: Any, kv_seqlen: Any = None, *, device: Any = None) -> CausalMask:
        assert type(q_seqlen) is type(kv_seqlen) is list
        assert all(0 < q <= kv for q, kv in zip(q_seqlen, kv_seqlen, strict=True))
        return cls(q_seqlen, kv_seqlen)


class SplitK:
    """triton_splitk.FwOp"""

    @classmethod
    def is_available(cls) -> bool:
        return True


@keywords_only
def memory_efficient_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
) -> Tensor:
    one, tokens, kv_heads, group, dim = query.shape
    assert one == 1
    assert p == 0.0
    assert scale is not None
    for shared in (key, value):
        assert shared.shape[0] == 1
        assert shared.shape[2:] == (kv_heads, group, dim)
        assert shared.dtype is query.dtype
        assert group == 1 or shared.stride(3) == 0, "that is how it knows that heads share keys"
    k, v = key[0, :, :, 0], value[0, :, :, 0]
    q = query[0].reshape(tokens, kv_heads * group, dim)
    bias = attn_bias
    if isinstance(bias, PagedMask):
        assert op is SplitK, "by itself it takes that kernel for small batches only"
        assert dim in (16, 32, 64, 128, 256)
        assert len(k) % bias.page_size == 0
        assert max(bias.q_lens) == 1, "it is not causal, which matters for more than one query"
        table, size = bias.table, bias.page_size
    else:
        assert isinstance(bias, CausalMask)
        assert op is None
        assert len(k) == sum(bias.kv_lens)
        begins = torch.tensor([0, *bias.kv_lens]).cumsum(0)[:-1]
        # Pages of one key each.
        width = max(bias.kv_lens)
        table = (begins[:, None] + torch.arange(width)[None, :]).clamp(max=len(k) - 1).to(torch.int32)
        size = 1
    out = attend(
        q,
        k.reshape(-1, size, kv_heads, dim),
        v.reshape(-1, size, kv_heads, dim),
        q_lens=bias.q_lens,
        kv_lens=bias.kv_lens,
        table=table,
        scale=scale,
        window=(-1, -1),
        softcap=0.0,
        page_multiple=64 if isinstance(bias, PagedMask) else 1,
    )
    return out.reshape(query.shape)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kernels.xformers_paged` then finds these."""
    contents: dict[str, dict[str, Any]] = {
        "xformers": {},
        "xformers.ops": {},
        "xformers.ops.fmha": {"memory_efficient_attention_forward": memory_efficient_attention_forward},
        "xformers.ops.fmha.attn_bias": {
            "PagedBlockDiagonalPaddedKeysMask": PagedMask,
            "BlockDiagonalCausalFromBottomRightMask": CausalMask,
        },
        "xformers.ops.fmha.triton_splitk": {"FwOp": SplitK},
    }
    for name, values in contents.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
