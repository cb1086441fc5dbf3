"""The flash-attention family: five libraries that compute the same and are called differently.

Everything is passed by keyword: the order of arguments differs, too. An adapter says what its library cannot do, and
turns one call of ours into its own.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from kernels.attention import AttnConfig

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a batch for one call: their lengths and pages, all int32 on the device.

    `q_start`, `kv_start`: [num_rows + 1]; `kv_lens`: [num_rows]; `page_table`: [num_rows, max_pages].
    `max_q`, `max_kv`: the longest, or more.
    """

    q_start: Tensor
    kv_start: Tensor
    kv_lens: Tensor
    page_table: Tensor
    max_q: int
    max_kv: int


class FlashLibrary(ABC):
    """One library. Raises whatever importing it raises."""

    name: ClassVar[str]
    """What people choose it by."""
    module: ClassVar[str]
    functions: ClassVar[tuple[str, ...]]
    """What is used of the module. That it can be found proves nothing: the names are looked up."""
    page_multiple: ClassVar[int]
    head_multiple: ClassVar[int] = 8
    capabilities: ClassVar[tuple[Capability, Capability]]
    """Least and greatest compute capability."""
    needs_clean_tail: ClassVar[bool] = False
    graphs: ClassVar[bool] = False
    max_head_dim: ClassVar[int] = 256

    def __init__(self) -> None:
        module = importlib.import_module(self.module)
        for function in self.functions:
            setattr(self, f"_{function}", getattr(module, function))

    def problems(self, config: AttnConfig, capability: Capability) -> list[str]:
        """Why it cannot serve this model on this GPU."""
        least, greatest = self.capabilities
        problems = []
        if not least <= capability <= greatest:
            problems.append(f"compute capability {_dotted(capability)} is not in {_dotted(least)}-{_dotted(greatest)}")
        if config.dtype not in (torch.float16, torch.bfloat16):
            problems.append(f"{config.dtype} is neither float16 nor bfloat16")
        if config.head_dim % self.head_multiple or config.head_dim > self.max_head_dim:
            problems.append(
                f"head_dim {config.head_dim} is not a multiple of {self.head_multiple} up to {self.max_head_dim}"
            )
        if config.page_size % self.page_multiple:
            problems.append(f"page_size {config.page_size} is not a multiple of {self.page_multiple}")
        return problems

    @abstractmethod
    def prompts(self, config: AttnConfig, q: Tensor, k_pool: Tensor, v_pool: Tensor, rows: Rows) -> Tensor:
        """q, result: [num_tokens, num_q_heads, head_dim]. Rows of any length."""

    def decodes(self, config: AttnConfig, q: Tensor, k_pool: Tensor, v_pool: Tensor, rows: Rows) -> Tensor:
        """q, result: [num_rows, num_q_heads, head_dim]."""
        return self.prompts(config, q, k_pool, v_pool, rows)


class VllmFlashAttn(FlashLibrary):
    """The package `vllm-flash-attn`, last released as 2.6.2."""

    name = "vllm_flash_attn"
    module = "vllm_flash_attn"
    functions = ("flash_attn_varlen_func", "flash_attn_with_kvcache")
    page_multiple = 16
    head_multiple = 32
    capabilities = ((8, 0), (9, 0))
    graphs = True
    _flash_attn_varlen_func: Callable[..., Any]
    _flash_attn_with_kvcache: Callable[..., Any]

    def prompts(self, config: AttnConfig, q: Tensor, k_pool: Tensor, v_pool: Tensor, rows: Rows) -> Tensor:
        """Lengths of keys are read from their sums, though the keys lie in pages. `out=` is not used: where heads
        share keys it is left untouched."""
        out: Tensor = self._flash_attn_varlen_func(
            q=q,
            k=k_pool,
            v=v_pool,
            cu_seqlens_q=rows.q_start,
            cu_seqlens_k=rows.kv_start,
            max_seqlen_q=rows.max_q,
            max_seqlen_k=rows.max_kv,
            softmax_scale=config.scale,
            causal=True,
            window_size=_window(config, -1),
            softcap=config.softcap,
            block_table=rows.page_table,
        )
        return out

    def decodes(self, config: AttnConfig, q: Tensor, k_pool: Tensor, v_pool: Tensor, rows: Rows) -> Tensor:
        out: Tensor = self._flash_attn_with_kvcache(
            q=q.unsqueeze(1),
            k_cache=k_pool,
            v_cache=v_pool,
            cache_seqlens=rows.kv_lens,
            block_table=rows.page_table,
            softmax_scale=config.scale,
            causal=True,
            window_size=_window(config, -1),
            softcap=config.softcap,
        )
        return out.squeeze(1)


class FlashAttn2(VllmFlashAttn):
    """The upstream package `flash-attn` 2."""

    name = "flash_attn"
    module = "flash_attn.flash_attn_interface"
    page_multiple = 256
    head_multiple = 8
    capabilities = ((8, 0), (12, 1))


class VllmBundled(FlashLibrary):
    """What `vllm` brings of the same project: versions 2, 3 and 4 behind one function."""

    name = "vllm"
    module = "vllm.vllm_flash_attn"
    functions = ("flash_attn_varlen_func", "is_fa_version_supported")
    page_multiple = 16
    capabilities = ((8, 0), (12, 1))
    _flash_attn_varlen_func: Callable[..., Any]
    _is_fa_version_supported: Callable[..., bool]

    def __init__(self) -> None:
        super().__init__()
        self.version = 2

    def problems(self, config: AttnConfig, capability: Capability) -> list[str]:
        """Takes version 3 on Hopper, where it is the fastest, and version 2 elsewhere: version 4 compiles at run
        time."""
        order = (3, 2) if capability[0] == 9 else (2,)
        version = next((each for each in order if self._is_fa_version_supported(each)), None)
        if version is None:
            return [f"none of its versions {', '.join(map(str, order))} works on this GPU"]
        self.version = version
        return super().problems(config, capability)

    @property
    def needs_clean_tail(self) -> bool:  # type: ignore[override]
        return self.version == 3

    @property
    def graphs(self) -> bool:  # type: ignore[override]
        return self.version == 2

    def prompts(self, config: AttnConfig, q: Tensor, k_pool: Tensor, v_pool: Tensor, rows: Rows) -> Tensor:
        out: Tensor = self._flash_attn_varlen_func(
            q=q,
            k=k_pool,
            v=v_pool,
            max_seqlen_q=rows.max_q,
            cu_seqlens_q=rows.q_start,
            max_seqlen_k=rows.max_kv,
            seqused_k=rows.kv_lens,
            softmax_scale=config.scale,
            causal=True,
            window_size=list(_window(config, -1)),
            softcap=config.softcap,
            block_table=rows.page_table,
            fa_version=self.version,
        )
        return out


class FlashAttn3(FlashLibrary):
    """`flash_attn_interface`: pages are known to its function for caches only, which takes ragged queries."""

    name = "fa3"
    module = "flash_attn_interface"
    functions = ("flash_attn_with_kvcache",)
    page_multiple = 1
    capabilities = ((8, 0), (9, 0))
    needs_clean_tail = True
    _flash_attn_with_kvcache: Callable[..., Any]

    def prompts(self, config: AttnConfig, q: Tensor, k_pool: Tensor, v_pool: Tensor, rows: Rows) -> Tensor:
        out: Tensor = self._flash_attn_with_kvcache(
            q=q,
            k_cache=k_pool,
            v_cache=v_pool,
            cache_seqlens=rows.kv_lens,
            page_table=rows.page_table,
            cu_seqlens_q=rows.q_start,
            max_seqlen_q=rows.max_q,
            softmax_scale=config.scale,
            causal=True,
            window_size=_window(config, -1),
            softcap=config.softcap,
        )
        return out


class FlashAttn4(FlashLibrary):
    """`flash_attn.cute`: compiles at first use, so it is taken only when it is asked for."""

    name = "fa4"
    module = "flash_attn.cute"
    functions = ("flash_attn_varlen_func",)
    page_multiple = 1
    capabilities = ((9, 0), (11, 0))
    needs_clean_tail = True
    _flash_attn_varlen_func: Callable[..., Any]

    def prompts(self, config: AttnConfig, q: Tensor, k_pool: Tensor, v_pool: Tensor, rows: Rows) -> Tensor:
        out = self._flash_attn_varlen_func(
            q=q,
            k=k_pool,
            v=v_pool,
            cu_seqlens_q=rows.q_start,
            seqused_k=rows.kv_lens,
            max_seqlen_q=rows.max_q,
            max_seqlen_k=rows.max_kv,
            page_table=rows.page_table,
            softmax_scale=config.scale,
            causal=True,
            window_size=_window(config, None),
            softcap=config.softcap,
        )
        result: Tensor = out[0] if isinstance(out, tuple) else out  # Betas differ in this.
        return result


LIBRARIES: tuple[type[FlashLibrary], ...] = (VllmFlashAttn, VllmBundled, FlashAttn3, FlashAttn2, FlashAttn4)
"""In the order of `auto`: the package that the backend is named after, the same project alive in vLLM, then others."""

ON_REQUEST: tuple[type[FlashLibrary], ...] = (FlashAttn4,)
"""Never taken by `auto`."""


def _window(config: AttnConfig, unlimited: int | None) -> tuple[int | None, int | None]:
    """(keys before the query's own, keys after it); the second is closed by causality."""
    if config.sliding_window is None:
        return unlimited, unlimited
    return config.sliding_window - 1, 0


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"
