"""The backend `vllm-flash-attn`: whichever library of the flash-attention family is installed and works here.

These libraries split keys over the GPU as they like, by what else is in the batch: a row's last bit is not promised
(rule I3), so that a near tie between two tokens may fall either way. `triton` is the backend that promises it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from kernels.attention import AttentionBackend, AttnBatch, AttnConfig, DeviceLens
from kernels.flash.providers import LIBRARIES, ON_REQUEST, Capability, FlashLibrary, Rows
from kernels.lens import device_lens
from kernels.selftest import self_test

PROVIDER_VARIABLE = "REMORA_FLASH_PROVIDER"
"""Environment variable that names one library; without it the first that works is taken."""


class FlashAttention(AttentionBackend):
    name = "vllm-flash-attn"

    @classmethod
    def unavailable(cls) -> str | None:
        """Which library works depends on the model too: see `unsupported`."""
        wanted = os.environ.get(PROVIDER_VARIABLE, "auto")
        if wanted != "auto" and wanted not in (library.name for library in LIBRARIES):
            known = ", ".join(library.name for library in LIBRARIES)
            return f"{PROVIDER_VARIABLE} is {wanted!r}; known: auto, {known}"
        return None

    @classmethod
    def unsupported(cls, config: AttnConfig) -> list[str]:
        library, reasons = _found(config)
        return [] if library is not None else [f"{name}: {why}" for name, why in reasons.items()]

    def __init__(self, config: AttnConfig, library: FlashLibrary | None = None) -> None:
        """Without `library`: the one that `unsupported` found."""
        super().__init__(config)
        if library is None:
            library, reasons = _found(config)
            if library is None:
                raise AssertionError(f"nobody asked whether a flash library works here: {reasons}")
        self.library = library

    @property
    def description(self) -> str:
        return f"{self.name} ({self.library.name})"

    @property
    def graphs(self) -> bool:  # type: ignore[override]
        return self.library.graphs

    @property
    def needs_clean_tail(self) -> bool:  # type: ignore[override]
        return self.library.needs_clean_tail

    def plan(self, batch: AttnBatch) -> None:
        """Decodes and prompts are two calls: with a long row among them, decodes would be computed like prompts."""
        lens = device_lens(batch)
        decodes = batch.num_decode
        batch.lens = lens
        batch.plan = _Plan(
            decodes=_rows(lens, batch, 0, decodes) if decodes else None,
            prompts=_rows(lens, batch, decodes, len(batch.q_lens)) if decodes < len(batch.q_lens) else None,
        )

    def forward(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, batch: AttnBatch) -> Tensor:
        plan: _Plan = batch.plan
        decodes = batch.num_decode
        parts = []
        if plan.decodes is not None:
            parts.append(self.library.decodes(self.config, q[:decodes], k_pool, v_pool, plan.decodes))
        if plan.prompts is not None:
            parts.append(self.library.prompts(self.config, q[decodes:], k_pool, v_pool, plan.prompts))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


@dataclass(frozen=True, slots=True)
class _Plan:
    decodes: Rows | None
    prompts: Rows | None


def _rows(lens: DeviceLens, batch: AttnBatch, begin: int, end: int) -> Rows:
    """Views where sums begin with 0 already, which those of all rows and of the first ones do."""
    q_start, kv_start = lens.q_start[begin : end + 1], lens.kv_start[begin : end + 1]
    return Rows(
        q_start=q_start - begin if begin else q_start,  # Each row before has one query.
        kv_start=kv_start - kv_start[:1] if begin else kv_start,
        kv_lens=lens.kv_lens[begin:end],
        page_table=lens.page_table[begin:end],
        max_q=max(batch.q_lens[begin:end]),
        max_kv=max(batch.kv_lens[begin:end]),
    )


@lru_cache(maxsize=8)
def _found(config: AttnConfig) -> tuple[FlashLibrary | None, dict[str, str]]:
    return find_library(config, torch.cuda.get_device_capability(config.device))


def find_library(config: AttnConfig, capability: Capability) -> tuple[FlashLibrary | None, dict[str, str]]:
    """The first library that can be imported, can serve the model, and computes a small example right; and why those
    before it were not taken. None if there is none."""
    wanted = os.environ.get(PROVIDER_VARIABLE, "auto")
    reasons: dict[str, str] = {}
    for kind in LIBRARIES:
        if wanted != kind.name and (wanted != "auto" or kind in ON_REQUEST):
            reasons[kind.name] = f"{wanted} was asked for" if wanted != "auto" else "it is taken on request only"
            continue
        try:
            library = kind()
        except Exception as error:  # Extensions fail in many ways: missing libraries, symbols, drivers.
            reasons[kind.name] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        problems = library.problems(config, capability) or _fails(config, library)
        if not problems:
            return library, reasons
        reasons[kind.name] = "; ".join(problems)
    return None, reasons


def _fails(config: AttnConfig, library: FlashLibrary) -> list[str]:
    report = self_test(FlashAttention(replace(config, max_context=0), library))
    return [] if report.passed else [report.text]
