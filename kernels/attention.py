"""Paged attention behind one interface.

K and V of a layer are two planes `[num_pages, page_size, num_kv_heads, head_dim]`. Page 0 is null: zeros, never
written; unused page-table entries name it. Page 1 takes what padding writes. Attention is causal and bottom-right
aligned: query i of a row with q queries and n keys sees keys 0 … n - q + i.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttnConfig:
    """One model's attention. `scale` multiplies q·k."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    page_size: int
    scale: float


@dataclass(slots=True)
class AttnBatch:
    """One step's rows, shared by all layers. The first `num_decode` rows have one query each; no other row has.

    `q_lens`, `kv_lens`: per row and at least 1, kv_lens counting this step's tokens too (host ints).
    `page_table`: int64 [num_rows, max_pages] on the device, 0 where unused. `slots`: int64 [num_tokens] on the device,
    page * page_size + offset of each token of the step. `plan`: whatever a backend prepared in `plan()`.
    """

    q_lens: Sequence[int]
    kv_lens: Sequence[int]
    page_table: Tensor
    slots: Tensor
    num_decode: int
    plan: Any = None


class AttentionBackend(ABC):
    """`plan` once per step, then `write_kv` and `forward` once per layer."""

    name: ClassVar[str]
    page_multiple: ClassVar[int]
    """Page sizes must be a multiple of this."""

    @classmethod
    @abstractmethod
    def unavailable(cls) -> str | None:
        """Why this backend cannot run on this machine; None if it can."""

    @classmethod
    @abstractmethod
    def unsupported(cls, config: AttnConfig) -> list[str]:
        """Why this backend cannot serve this model; empty if it can."""

    def __init__(self, config: AttnConfig) -> None:
        self.config = config

    @abstractmethod
    def plan(self, batch: AttnBatch) -> None:
        """Host work of a step: may allocate, sets `batch.plan`."""

    def write_kv(self, k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, batch: AttnBatch) -> None:
        """Put k and v `[num_tokens, num_kv_heads, head_dim]` where `batch.slots` says."""
        config = self.config
        flat = (-1, config.num_kv_heads, config.head_dim)
        k_pool.view(flat).index_copy_(0, batch.slots, k)
        v_pool.view(flat).index_copy_(0, batch.slots, v)

    @abstractmethod
    def forward(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, batch: AttnBatch) -> Tensor:
        """Attend: q and the result are `[num_tokens, num_q_heads, head_dim]`. Never lets what lies beyond a row's
        kv_len into its result, whatever it holds."""


class NoBackend(ValueError):
    """No attention backend can serve this model here. The message gives each one's reasons."""


NOT_BUILT = ("vllm-flash-attn", "xformers", "triton")
"""Backends whose names are known and that this release does not contain."""


def select_backend(config: AttnConfig, requested: str = "auto") -> tuple[AttentionBackend, dict[str, str]]:
    """A backend for this model, and for every other one why it was not taken.

    An explicit choice that cannot work raises NoBackend with the reasons; it never falls back.
    """
    from kernels.torch_ref import TorchAttention

    built: dict[str, type[AttentionBackend]] = {TorchAttention.name: TorchAttention}
    reasons: dict[str, str] = dict.fromkeys(NOT_BUILT, "not part of this release")
    if requested != "auto" and requested not in built and requested not in reasons:
        raise NoBackend(f"no attention backend is called {requested!r}; known: auto, {', '.join([*built, *reasons])}")
    for name, backend in built.items():
        if requested not in ("auto", name):
            reasons[name] = f"{requested} was asked for"
            continue
        problems = _problems(backend, config)
        if not problems:
            return backend(config), reasons
        reasons[name] = "; ".join(problems)
    if requested != "auto":
        raise NoBackend(f"cannot use the attention backend {requested}: {reasons[requested]}")
    raise NoBackend("no attention backend works: " + ", ".join(f"{name}: {why}" for name, why in reasons.items()))


def _problems(backend: type[AttentionBackend], config: AttnConfig) -> list[str]:
    missing = backend.unavailable()
    if missing:
        return [missing]
    if config.page_size % backend.page_multiple:
        return [
            f"page_size {config.page_size} is not a multiple of {backend.page_multiple}",
            *backend.unsupported(config),
        ]
    return backend.unsupported(config)
