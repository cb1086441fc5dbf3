"""The cpu runner: plans in, sampled tokens out, a step being one call of a fused operator in C++."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actors.engine.plan import StepPlan, StepResult
from actors.model.errors import ModelUnusable
from actors.runner.cpu.draws import Draws
from actors.runner.cpu.in_order import InOrder
from actors.runner.cpu.model import FusedModel, fused_library, one_thread
from actors.runner.cpu.packed_cache import PackedCache
from actors.runner.torch.choose import choose, scores_or_faults
from actors.runner.torch.group import RankGroup
from actors.runner.torch.inputs import Layout, SampleRow, lay_out
from actors.runner.torch.local_model import StepModel
from actors.runner.torch.runner import TorchHandle, TorchRunner
from actors.runner.torch.sampler import NO_TOKEN, NOT_FINITE
from actors.runner.torch.setup import ModelSetup
from kernels.cpu.library import Library


class CpuRunner(TorchRunner):
    """Implements `ModelRunner`: the torch runner, with another forward pass, which chooses most tokens, too. Steps are
    computed by the threads that wait for them (see `InOrder`). Its pages and those of the torch runner can take each
    other's place. Raises ModelUnusable also where the operator cannot compute the model; `why_not` says
    so before. `packed_folder`: where packed weights are kept, for other workers too; None = each has its own.
    """

    name = "cpu"

    def __init__(self, folder: str | os.PathLike[str], *, packed_folder: Path | None = None, **settings: Any) -> None:
        self._cache = None if packed_folder is None else PackedCache(packed_folder)
        super().__init__(folder, **settings)

    def launch(self, plan: StepPlan) -> TorchHandle:
        return TorchHandle(self._thread.submit(self._run, lay_out(plan, self._info.page_size)))

    def _executor(self, threads: int) -> Executor:
        return InOrder()

    def _compute(self, inputs: Layout) -> StepResult:
        model = self._loaded()
        assert isinstance(model, FusedModel)
        for index, uid in inputs.pending:
            inputs.tokens[index] = self._last[uid]
        draws = Draws(inputs.samples, self._info.eos_ids)
        logits, chosen = model.choose(inputs, draws.packed)
        if not draws.others and not inputs.scored:
            return _told(inputs.samples, chosen)
        with torch.inference_mode(), one_thread():
            return self._with_others(model, inputs, logits, chosen, draws.others)

    def _with_others(
        self, model: FusedModel, inputs: Layout, logits: np.ndarray, chosen: list[int], others: list[int]
    ) -> StepResult:
        """For rows whose logits are to be seen, or changed, before one is chosen."""
        rows = inputs.samples
        done = sorted(set(range(len(rows))) - set(others))
        theirs = torch.from_numpy(logits[others])
        result = choose(
            theirs, [rows[index] for index in others], self._last, self._info.eos_ids, self._matchers, model.pick
        )
        mine = _told([rows[index] for index in done], [chosen[index] for index in done])
        scores, unscored = scores_or_faults(torch.from_numpy(logits[len(rows) :]), inputs.scored)
        return replace(
            result,
            sampled=mine.sampled | result.sampled,
            failed=mine.failed | result.failed | unscored,
            scores=scores,
        )

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


def _told(rows: list[SampleRow], chosen: list[int]) -> StepResult:
    told = dict(zip((row.uid for row in rows), chosen, strict=True))
    if NO_TOKEN not in chosen:
        return StepResult(sampled=told)
    return StepResult(
        sampled={uid: token for uid, token in told.items() if token != NO_TOKEN},
        failed={uid: NOT_FINITE for uid, token in told.items() if token == NO_TOKEN},
    )


def _load(setup: ModelSetup, library: Library, threads: int, cache: PackedCache | None) -> StepModel:
    with one_thread():
        return FusedModel(setup, library, threads, cache)


def why_not(folder: str | os.PathLike[str], *, attention: str = "auto", **settings: Any) -> str:
    """Why the cpu runner cannot serve this model here; empty if it can. `settings`: as `ModelSetup.of` takes them.
    Raises ModelUnusable for what no runner can."""
    if attention != "auto":
        return f"the attention backend {attention} is asked for"
    setup = ModelSetup.of(folder, **settings)
    library = fused_library(setup)
    return library if isinstance(library, str) else ""
