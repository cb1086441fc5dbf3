"""What the contract is held against: every backend as far as this machine can run it.

Without a GPU: torch, Triton in its interpreter, and the adapters of xformers and of each flash-attention library over
modules that check what they are given (see `fake_flash`). With one: the real ones.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace

import pytest
import torch

from kernels.attention import AttentionBackend, AttnConfig
from kernels.flash.backend import FlashAttention
from kernels.flash.providers import LIBRARIES, FlashLibrary
from kernels.selection import BACKENDS, problems_of
from kernels.xformers_paged import XformersAttention, _library
from tests.kernels.attention import fake_flash, fake_xformers

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
HOPPER, AMPERE = (9, 0), (8, 0)


@dataclass(frozen=True)
class Subject:
    """`page`: page size that its cases use. `library`: a flash-attention library, on what `capability`."""

    name: str
    dtype: torch.dtype
    page: int = 16
    library: type[FlashLibrary] | None = None
    capability: tuple[int, int] = HOPPER

    def config(self, heads: int = 4, kv_heads: int = 2, dim: int = 64, **fields: object) -> AttnConfig:
        base = AttnConfig(heads, kv_heads, dim, self.dtype, DEVICE, self.page, dim**-0.5)
        return replace(base, **fields)  # type: ignore[arg-type]

    def backend(self, config: AttnConfig) -> AttentionBackend:
        """Skips the test, with the backend's own reason, where it cannot serve this."""
        if self.library is not None:
            return self._flash(config, self.library)
        if self.name == "xformers" and not GPU:
            return self._xformers(config)
        problems = problems_of(self.name, config)
        if problems:
            pytest.skip("; ".join(problems))
        return BACKENDS[self.name]()(config)

    def _flash(self, config: AttnConfig, kind: type[FlashLibrary]) -> FlashAttention:
        library = kind()
        problems = library.problems(config, self.capability)
        if problems:
            pytest.skip("; ".join(problems))
        return FlashAttention(config, library)

    def _xformers(self, config: AttnConfig) -> XformersAttention:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "get_device_capability", lambda device: self.capability)
            problems = XformersAttention.unsupported(config)
        if problems:
            pytest.skip("; ".join(problems))
        return XformersAttention(config)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What it needs on a machine without a GPU."""
        if GPU:
            return
        _library.cache_clear()
        if self.library is not None:
            fake_flash.install(monkeypatch, self.library.module)
        elif self.name == "xformers":
            fake_xformers.install(monkeypatch)

    def __str__(self) -> str:
        kind = "" if self.library is None else f"-{self.library.name}"
        old = "-ampere" if self.capability == AMPERE else ""
        return f"{self.name}{kind}{old}-{str(self.dtype).removeprefix('torch.')}"


def _subjects() -> list[Subject]:
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    found = [Subject("torch", dtype) for dtype in dtypes]
    if importlib.util.find_spec("triton") is not None:
        # Tiles of 64 keys lie in one page or in several: both kinds.
        pages = {torch.float32: 64, torch.float16: 16, torch.bfloat16: 64}
        found += [Subject("triton", dtype, pages[dtype]) for dtype in (dtypes if GPU else dtypes[:2])]
    if GPU:
        return [*found, *(Subject(name, dtype, 64) for name in ("xformers", "vllm-flash-attn") for dtype in dtypes[1:])]
    found += [Subject("xformers", dtype, page=64) for dtype in dtypes[1:]]
    for library in LIBRARIES:
        page = max(16, library.page_multiple)
        found.append(Subject("vllm-flash-attn", torch.bfloat16, page, library))
    found += [Subject("vllm-flash-attn", torch.float16, 16, library, AMPERE) for library in LIBRARIES[:2]]
    return found


SUBJECTS = _subjects()
