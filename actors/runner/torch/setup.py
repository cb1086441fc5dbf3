"""What all parts of one model are made by: dtype, device, sizes. Ranks that were given the same have the same here."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from actors.engine.plan import NUM_RESERVED_PAGES
from actors.model.card import ModelCard
from actors.model.errors import ModelUnusable
from actors.runner.torch.fingerprint import fingerprint
from actors.runner.torch.gpu_memory import GpuMemory, pages_that_fit
from actors.runner.torch.shards import shard_of

CPU_PAGE_SIZE, CUDA_PAGE_SIZE = 16, 64
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class ModelSetup:
    """`num_pages` counts the reserved pages too. `attention`: the backend asked for, or `auto`. `quantization`: of the
    weights, as `model.quantization` has it."""

    folder: Path
    card: ModelCard
    dtype: torch.dtype
    device: torch.device
    page_size: int
    num_pages: int
    attention: str
    quantization: str = ""

    @classmethod
    def of(
        cls,
        folder: str | os.PathLike[str],
        *,
        dtype: str = "auto",
        device: str = "cpu",
        page_size: int = 0,
        kv_tokens: int = 65536,
        attention: str = "auto",
        gpu_memory_share: float = 0.9,
        ranks: int = 1,
        quantization: str = "",
    ) -> ModelSetup:
        """`kv_tokens` is rounded down to whole pages; 0 = what fits in `gpu_memory_share` of each GPU, the model being
        split over `ranks` of them. `page_size` 0 is the device's usual one. Raises ModelUnusable."""
        place = torch.device(device)
        size = page_size or (CUDA_PAGE_SIZE if place.type == "cuda" else CPU_PAGE_SIZE)
        card, kind = ModelCard.read(folder), choose_dtype(dtype, place)
        return cls(
            folder=Path(folder),
            card=card,
            dtype=kind,
            device=place,
            page_size=size,
            num_pages=_pages(kv_tokens, size)
            if kv_tokens
            else _fitting(card, kind, place, size, gpu_memory_share, ranks),
            attention=attention,
            quantization=quantization,
        )

    @property
    def page_shape(self) -> tuple[int, ...]:
        """One page in the exchange layout, of all ranks together."""
        card = self.card
        return (card.num_layers, 2, self.page_size, card.num_kv_heads, card.head_dim)

    @property
    def page_bytes(self) -> int:
        return math.prod(self.page_shape) * self.dtype.itemsize

    def weights(self) -> str:
        """A name for the weights. Reads samples of them."""
        return fingerprint(self.folder)

    def kv_format(self) -> str:
        """Names what a page's bytes mean, on however many ranks. Reads samples of the weights."""
        quantised = f", {self.quantization} weights" if self.quantization else ""
        return f"torch {self.dtype} {list(self.page_shape)} of {self.weights()}{quantised}"

    def identity(self) -> str:
        """What ranks must have in common."""
        return f"{self.kv_format()}, {self.num_pages} pages, {self.device.type}"


def _pages(kv_tokens: int, page_size: int) -> int:
    if kv_tokens < page_size:
        raise ModelUnusable(f"a KV cache of {kv_tokens} tokens holds no page of {page_size}")
    return kv_tokens // page_size + NUM_RESERVED_PAGES


def _fitting(
    card: ModelCard, dtype: torch.dtype, device: torch.device, page_size: int, share: float, ranks: int
) -> int:
    """As many as the rank with the largest part has room for: all have the same."""
    if device.type != "cuda":
        raise ModelUnusable(f"a KV cache of 0 tokens is what fits on a GPU, and the model is on {device}")
    memory = GpuMemory.of(device)
    shards = [shard_of(card, rank, ranks) for rank in range(ranks)]
    return min(pages_that_fit(card, shard, dtype, page_size, memory, share) for shard in shards)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto`: bfloat16 where the device computes in it, else float32 on CPU and float16 on CUDA."""
    if name != "auto":
        if name not in DTYPES:
            raise ValueError(f"dtype {name!r} is not one of auto, {', '.join(DTYPES)}")
        return DTYPES[name]
    if device.type == "cuda":
        # Asked for in other words, torch says yes to GPUs that emulate it.
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    return torch.bfloat16 if _cpu_computes_bfloat16() else torch.float32


def _cpu_computes_bfloat16() -> bool:
    """AVX512-BF16 or AMX. Without them bf16 is emulated and slower than float32."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
