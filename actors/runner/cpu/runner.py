"""The cpu runner: plans in, sampled tokens out, a step being one call of a fused operator in C++."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from actors.model.errors import ModelUnusable
from actors.runner.cpu.model import FusedModel, fused_library
from actors.runner.cpu.packed_cache import PackedCache
from actors.runner.torch.group import RankGroup
from actors.runner.torch.local_model import StepModel
from actors.runner.torch.runner import TorchRunner
from actors.runner.torch.setup import ModelSetup
from kernels.cpu.library import Library


class CpuRunner(TorchRunner):
    """Implements `ModelRunner`: the torch runner, with another forward pass. Its pages and those of the torch runner
    can take each other's place. Raises ModelUnusable also where the operator cannot compute the model; `why_not` says
    so before. `packed_folder`: where packed weights are kept, for other workers too; None = each has its own.
    """

    name = "cpu"

    def __init__(self, folder: str | os.PathLike[str], *, packed_folder: Path | None = None, **settings: Any) -> None:
        self._cache = None if packed_folder is None else PackedCache(packed_folder)
        super().__init__(folder, **settings)

    def _how(self, setup: ModelSetup, group: RankGroup | None, threads: int) -> tuple[str, Callable[[], StepModel]]:
        library = fused_library(setup)
        if isinstance(library, str):
            raise ModelUnusable(f"the cpu runner cannot serve this model here: {library}")
        if group is not None:
            raise ModelUnusable("the cpu runner computes a whole model, not a rank's part of it")
        self.attention_reasons = {}
        step = f"fused {library.variant.dtype} step"
        if setup.quantization:
            step += f" with {setup.quantization} weights and activations"
        description = f"{step} on cpu ({library.variant.name}), {threads} threads"
        return description, partial(_load, setup, library, threads, self._cache)


def _load(setup: ModelSetup, library: Library, threads: int, cache: PackedCache | None) -> StepModel:
    # The operator has threads of its own; what is left to torch is too little to share, and libgomp's would spin.
    torch.set_num_threads(1)
    return FusedModel(setup, library, threads, cache)


def why_not(folder: str | os.PathLike[str], *, attention: str = "auto", **settings: Any) -> str:
    """Why the cpu runner cannot serve this model here; empty if it can. `settings`: as `ModelSetup.of` takes them.
    Raises ModelUnusable for what no runner can."""
    if attention != "auto":
        return f"the attention backend {attention} is asked for"
    setup = ModelSetup.of(folder, **settings)
    library = fused_library(setup)
    return library if isinstance(library, str) else ""
