"""Whether a runner's forward pass computes right on this machine: steps of a small model of the same kind, held against
plain float32 on the CPU."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from actors.engine.plan import NUM_RESERVED_PAGES, PlanItem, StepPlan
from actors.messages import SamplingParams
from actors.runner.cpu.model import FusedModel, fused_library
from actors.runner.sample_model import VOCAB, write_sample
from actors.runner.torch.inputs import StepInputs, build_inputs
from actors.runner.torch.local_model import LocalModel, StepModel, attention_for
from actors.runner.torch.setup import ModelSetup
from kernels.selftest import Report

CAPS = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest error of a logit, by dtype; the logits' own spread is about 1."""
INT8_CAP = 3e-1
"""The same where weights are int8: twice what SmolLM2's shape was seen to have; wrong products are off by about 1."""
PROMPTS = (1, 5, 40)
"""Tokens of the first step's prompts; the second step decodes one token each and adds a chunk to the last."""
CHUNK = 7
LONGEST = PROMPTS[-1] + CHUNK


def step_test(setup: ModelSetup, runner: str, threads: int) -> Report:
    """Try what `runner` (torch or cpu) makes of this setup. Raises nothing: what goes wrong is in the report."""
    cap = INT8_CAP if setup.quantization else CAPS[setup.dtype]
    try:
        with tempfile.TemporaryDirectory(prefix="remora-doctor-") as folder:
            write_sample(setup.folder, Path(folder))
            small = ModelSetup.of(
                folder,
                dtype=str(setup.dtype).removeprefix("torch."),
                device=str(setup.device),
                page_size=setup.page_size,
                kv_tokens=setup.page_size * _pages_each(setup) * len(PROMPTS),
                attention=setup.attention,
                quantization=setup.quantization,
            )
            plain = replace(small, dtype=torch.float32, device=torch.device("cpu"), attention="torch", quantization="")
            wanted, _ = _steps(LocalModel(plain, attention_for(plain)[0]), small)
            got, seconds = _steps(_model(small, runner, threads), small)
    except Exception as error:  # A kernel or library that fails in any way: all of it is an answer.
        why = f"the step raised {type(error).__name__}: {error}".splitlines()[0]
        return Report(False, float("nan"), cap, 0.0, why)
    largest = float((got.cpu() - wanted).abs().max())
    passed = largest <= cap
    verdict = "is right" if passed else "is WRONG"
    text = f"a step of {runner} {verdict}: error {largest:.1e}, allowed {cap:.0e}"
    return Report(passed, largest, cap, seconds, text)


def _model(setup: ModelSetup, runner: str, threads: int) -> StepModel:
    if runner != "cpu":
        return LocalModel(setup, attention_for(setup)[0])
    library = fused_library(setup)
    if isinstance(library, str):
        raise RuntimeError(library)
    return FusedModel(setup, library, threads)


@torch.inference_mode()
def _steps(model: StepModel, setup: ModelSetup) -> tuple[Tensor, float]:
    """Logits float32 [samples of both steps, vocab], and how long they took."""
    began = time.perf_counter()
    logits = [model.step(_inputs(setup, lens)).clone() for lens in _LENS]
    seconds = time.perf_counter() - began
    model.close()
    return torch.cat(logits), seconds


_LENS = (
    tuple((0, length) for length in PROMPTS),
    tuple((length, CHUNK if length == PROMPTS[-1] else 1) for length in PROMPTS),
)
"""(start, count) of each row of both steps."""


def _inputs(setup: ModelSetup, lens: tuple[tuple[int, int], ...]) -> StepInputs:
    """Every row samples. Tokens are the same in every run."""
    items = []
    for uid, (start, count) in enumerate(lens):
        first = NUM_RESERVED_PAGES + uid * _pages_each(setup)
        table = list(reversed(range(first, first + _pages_each(setup))))
        tokens = [(uid * 97 + position * 31) % VOCAB for position in range(start, start + count)]
        items.append(PlanItem(uid, start, count, tokens, table, True, False, SamplingParams(), 0, start + count))
    items.sort(key=lambda item: item.count)
    return build_inputs(StepPlan(1, tuple(items)), setup.page_size)


def _pages_each(setup: ModelSetup) -> int:
    return -(-LONGEST // setup.page_size)
