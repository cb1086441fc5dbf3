"""What would serve a model on this machine, why nothing else, and whether it computes right."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from actors.engine.plan import NUM_RESERVED_PAGES
from actors.model.errors import ModelError
from actors.model.source import find
from actors.runner.cpu.load import packed_bytes
from actors.runner.cpu.model import fused_library
from actors.runner.step_test import step_test
from actors.runner.torch.local_model import attention_for
from actors.runner.torch.memory import available_bytes
from actors.runner.torch.setup import ModelSetup
from actors.worker.build import compute_threads, runner_class, told_to_ranks
from cluster.doctor.gpus import Gpus
from configs import RemoraConfig
from kernels.selection import NoBackend
from kernels.selftest import Report, self_test

GIB = 2**30


@dataclass
class Verdict:
    """On one model. `runner`: torch or cpu. `attention`: its backend, of the torch runner; `reasons`: why not each of
    the others. `tests`: what was computed, and whether it was right. `problems`: why it cannot be served as configured;
    `remarks`: what else its owner should know."""

    model: str
    device: str
    shape: str = ""
    dtype: str = ""
    kv_cache: str = ""
    runner: str = ""
    attention: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    tests: list[Report] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        return not self.problems and all(test.passed for test in self.tests)


def examine(config: RemoraConfig, gpus: Gpus) -> Verdict:
    """`config.model.id` as it is configured. Fetches nothing."""
    device = "cuda" if config.workers.num_gpus else "cpu"
    verdict = Verdict(config.model.id, device)
    if device == "cuda" and not gpus.found:
        wanted = f"workers.num_gpus is {config.workers.num_gpus:g}"
        verdict.problems.append(f"{wanted}, and there is no GPU: {gpus.why_none}")
        return verdict
    if device == "cpu" and gpus.found:
        verdict.remarks.append("workers.num_gpus is 0: the GPU of this machine is not used")
    if config.workers.runner == "toy":
        verdict.runner = "toy"
        verdict.remarks.append("the toy runner has no model")
        return verdict
    try:
        folder = find(config.model.id, config.model.cache_dir)
        if folder is None:
            verdict.remarks.append("it is not on this machine yet; `remora serve` fetches it, the doctor does not")
        else:
            _examine_folder(verdict, config, folder.path)
    except (ModelError, NoBackend, ValueError) as error:
        verdict.problems.append(str(error))
    return verdict


def _examine_folder(verdict: Verdict, config: RemoraConfig, folder: Path) -> None:
    setup = ModelSetup.of(folder, **told_to_ranks(config))
    card = setup.card
    dtype = str(setup.dtype).removeprefix("torch.")
    verdict.dtype = f"{dtype}, {setup.quantization} weights" if setup.quantization else dtype
    verdict.shape = (
        f"{card.family}, {card.num_layers} layers, {card.num_heads}/{card.num_kv_heads} heads of {card.head_dim}, "
        f"context {card.max_context:,}"
    )
    kind, remark = runner_class(config, folder)
    _size_cache(verdict, setup, packed_bytes(setup) if kind.name == "cpu" else 0)
    verdict.runner = kind.name
    if remark:
        verdict.remarks.append(remark)
    if kind.name == "cpu":
        library = fused_library(setup)
        if isinstance(library, str):
            verdict.problems.append(f"the cpu runner cannot serve this model here: {library}")
            return
        verdict.attention = f"part of the fused step ({library.variant.name})"
    else:
        backend, verdict.reasons = attention_for(setup)
        verdict.attention = backend.description
        verdict.tests.append(self_test(backend))
    verdict.tests.append(step_test(setup, kind.name, compute_threads(config)))


def _size_cache(verdict: Verdict, setup: ModelSetup, packed: int) -> None:
    """`packed`: bytes of weights that have to be in memory beside it."""
    needed = setup.num_pages * setup.page_bytes
    tokens = (setup.num_pages - NUM_RESERVED_PAGES) * setup.page_size
    verdict.kv_cache = f"{tokens:,} tokens in pages of {setup.page_size}, {needed / GIB:.1f} GiB"
    free = available_bytes() if setup.device.type == "cpu" else None
    if free is not None and needed + packed > free:
        beside = f", its packed weights {packed / GIB:.1f} GiB," if packed else ""
        verdict.problems.append(
            f"its KV cache takes {needed / GIB:.1f} GiB{beside} and {free / GIB:.1f} GiB are free; "
            "lower engine.kv_tokens"
        )


def with_model(config: RemoraConfig, model: str) -> RemoraConfig:
    return replace(config, model=replace(config.model, id=model))
