"""Paged attention behind one interface.

K and V of a layer are two planes `[num_pages, page_size, num_kv_heads, head_dim]`. Page 0 is null: zeros, never
written; unused page-table entries name it. Page 1 takes what padding writes. Attention is causal and bottom-right
aligned: query i of a row with q queries and n keys sees keys 0 … n - q + i, of these only the last `sliding_window` if
there is one.
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
    """One model's attention. `scale` multiplies q·k.

    `sliding_window`: how many keys a query sees, its own included; None = all. `softcap`: scores become
    softcap * tanh(score / softcap); 0 = as they are. `max_context`: longest row there may be, 0 = not known: it bounds
    what a captured graph can be replayed with.
    """

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    page_size: int
    scale: float
    sliding_window: int | None = None
    softcap: float = 0.0
    max_context: int = 0

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.num_q_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class DeviceLens:
    """Lengths and pages of a batch on the device, all int32, as kernels want them.

    `q_start`, `kv_start`: [num_rows + 1], sums of the lengths before each row. `kv_lens`: [num_rows].
    `page_table`: [num_rows, max_pages], contiguous.
    """

    q_start: Tensor
    kv_start: Tensor
    kv_lens: Tensor
    page_table: Tensor


@dataclass(slots=True)
class AttnBatch:
    """One step's rows, shared by all layers. The first `num_decode` rows have one query each; no other row has.

    `q_lens`, `kv_lens`: per row, kv_lens counting this step's tokens too (host ints). A row without keys has a result
    of zeros: such rows fill up the batch of a graph. In a batch that a graph was captured with (see `graph_batch`)
    they are upper bounds.
    `page_table`: int64 [num_rows, max_pages] on the device, 0 where unused. `slots`: int64 [num_tokens] on the device,
    page * page_size + offset of each token of the step. `plan`, `lens`: whatever a backend prepared in `plan()`.
    """

    q_lens: Sequence[int]
    kv_lens: Sequence[int]
    page_table: Tensor
    slots: Tensor
    num_decode: int
    plan: Any = None
    lens: DeviceLens | None = None


class AttentionBackend(ABC):
    """`plan` once per step, then `write_kv` and `forward` once per layer."""

    name: ClassVar[str]
    page_multiple: ClassVar[int] = 1
    """Page sizes must be a multiple of this."""
    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    """Types of device that it runs on."""
    on_request: ClassVar[tuple[str, ...]] = ()
    """Those of them where it is taken by name only, never by `auto`."""
    batch_invariant: ClassVar[bool] = False
    """Whether a row's result is the same to the last bit whatever else is in the batch (rule I3)."""
    graphs: ClassVar[bool] = False
    """Whether `write_kv` and `forward` of decodes may be captured in a CUDA graph: they read nothing but tensors of the
    batch then, of which `plan` leaves all that depends on lengths in `lens`."""
    needs_clean_tail: ClassVar[bool] = False
    """Whether what lies beyond a row's length in its last page must be finite."""

    @classmethod
    @abstractmethod
    def unavailable(cls) -> str | None:
        """Why this backend cannot run on this machine; None if it can. May import its library."""

    @classmethod
    @abstractmethod
    def unsupported(cls, config: AttnConfig) -> list[str]:
        """Why this backend cannot serve this model; empty if it can."""

    def __init__(self, config: AttnConfig) -> None:
        self.config = config

    @property
    def description(self) -> str:
        """Its name, and what else people should know of it."""
        return self.name

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
        kv_len into its result, whatever it holds (but see `needs_clean_tail`)."""
