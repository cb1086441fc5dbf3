"""Which runner `workers.runner` means here, and what is said when `auto` cannot have the faster one."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from actors.model.errors import ModelUnusable
from actors.runner.cpu import runner as cpu_module
from actors.runner.cpu.runner import CpuRunner
from actors.runner.torch.overlapped import OverlappedRunner
from actors.runner.torch.runner import TorchRunner
from actors.worker.build import runner_class
from configs import ModelConfig, RemoraConfig, WorkerConfig

FOLDER = Path("model")


def config(**workers: object) -> RemoraConfig:
    return replace(RemoraConfig(), workers=replace(WorkerConfig(), **workers))  # type: ignore[arg-type]


@pytest.fixture
def reason(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why the cpu runner cannot serve."""
    why = [""]
    monkeypatch.setattr(cpu_module, "why_not", lambda folder, **settings: why[0])
    return why


def test_auto_is_the_fused_step_where_it_can_serve(reason: list[str], caplog: pytest.LogCaptureFixture) -> None:
    assert runner_class(config(), FOLDER) == (CpuRunner, "")
    assert not caplog.records


def test_auto_is_torch_elsewhere_and_says_why(reason: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """Once in the log, and in the description that the stats show."""
    reason[0] = "there is no compiler"
    with caplog.at_level(logging.WARNING):
        assert runner_class(config(), FOLDER) == (TorchRunner, "no fused step: there is no compiler")
    assert [record.getMessage() for record in caplog.records] == [
        "the torch runner serves, not the faster cpu runner: there is no compiler"
    ]


def test_ranks_are_torchs(reason: list[str]) -> None:
    build, remark = runner_class(config(tensor_parallel=2), FOLDER)
    assert build is TorchRunner
    assert "split over ranks" in remark


def test_on_a_gpu_nothing_is_missing(reason: list[str], caplog: pytest.LogCaptureFixture) -> None:
    reason[0] = "it computes on CPUs, not on cuda"
    assert runner_class(config(num_gpus=1), FOLDER) == (OverlappedRunner, "")
    assert not caplog.records


@pytest.mark.parametrize(("name", "build"), [("cpu", CpuRunner), ("torch", TorchRunner)])
def test_who_is_named_is_taken(reason: list[str], name: str, build: type[TorchRunner]) -> None:
    """An explicit choice never falls back: the cpu runner itself refuses what it cannot serve."""
    reason[0] = "no"
    assert runner_class(config(runner=name), FOLDER) == (build, "")


def test_int8_never_becomes_another_arithmetic(reason: list[str]) -> None:
    """Where the fused step cannot compute it, the worker says why and does not start."""
    asked = replace(config(), model=ModelConfig(quantization="int8"))
    assert runner_class(asked, FOLDER) == (CpuRunner, "")
    reason[0] = "no build multiplies int8 weights beside bfloat16 on this CPU: it lacks avx512_vnni"
    with pytest.raises(ModelUnusable, match=r"^model.quantization int8 cannot be computed here: .* lacks avx512_vnni$"):
        runner_class(asked, FOLDER)
