"""`remora doctor`: what it says of machines and models, and that it can be trusted with a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.runner.torch import decoder as torch_decoder
from actors.runner.torch.setup import ModelSetup
from cluster.cli_doctor import machine_lines, model_lines
from cluster.doctor import gpus, machine, model
from cluster.doctor.gpus import Gpu, Gpus
from configs import load
from kernels.attention import AttnBatch
from kernels.torch_ref import TorchAttention
from tests.kernels.cpu.builds import unusable
from tests.runner import tiny

ROOT = Path(__file__).parents[3]
PATIENCE_S = 200.0
NONE = Gpus((), "no NVIDIA driver is loaded")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that both runners compute."""
    path = tmp_path_factory.mktemp("model")
    tiny.save("wide-llama", path)
    return path


def examined(folder: Path | str, found: Gpus = NONE, **settings: Any) -> model.Verdict:
    overrides = {"model.id": str(folder), "engine.kv_tokens": 1024, "model.dtype": "float32"}
    dotted = {name.replace("__", "."): value for name, value in settings.items()}
    return model.examine(load(None, {**overrides, **dotted}), found)


# -- the machine -------------------------------------------------------------------------------------------------------


def test_versions_are_those_that_are_installed() -> None:
    here = machine.look()
    assert here.packages["torch"] == torch.__version__
    assert here.cores == len(os.sched_getaffinity(0))
    assert any("torch " + torch.__version__ in line for line in machine_lines(here, NONE))


def test_a_cpu_is_told_by_its_name_and_the_flags_that_matter(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    cores = ["processor\t: 0", "model name\t: Some CPU", "flags\t\t: fpu avx2 fma avx512f", "", "model name\t: Other"]
    (tmp_path / "proc/cpuinfo").write_text("\n".join(cores))
    (tmp_path / "proc/meminfo").write_text("MemAvailable:    2097152 kB\n")
    here = machine.look(tmp_path)
    assert (here.cpu, here.flags, here.free_bytes) == ("Some CPU", ("avx2", "avx512f"), 2 * 2**30)
    assert any(line.endswith("Some CPU, " + f"{here.cores} cores: avx2 avx512f") for line in machine_lines(here, NONE))


def test_a_machine_that_tells_nothing_is_no_failure(tmp_path: Path) -> None:
    here = machine.look(tmp_path)
    assert here.free_bytes is None
    assert any(line.endswith("unknown") for line in machine_lines(here, NONE))


# -- GPUs --------------------------------------------------------------------------------------------------------------


def with_driver(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    return tmp_path


def ask(tmp_path: Path, program: str, patience_s: float = PATIENCE_S) -> Gpus:
    return gpus.look(with_driver(tmp_path), (sys.executable, "-c", program), patience_s)


def test_without_a_driver_nobody_is_asked(tmp_path: Path) -> None:
    assert gpus.look(tmp_path, ("/nowhere/python",)) == NONE


def test_gpus_are_what_the_child_says(tmp_path: Path) -> None:
    gpu = {"name": "H200", "capability": [9, 0], "total_bytes": 150, "free_bytes": 149}
    found = ask(tmp_path, f"import json; print('noise'); print(json.dumps({{'gpus': [{gpu!r}]}}))")
    assert found == Gpus((Gpu("H200", (9, 0), 150, 149),))
    assert any("H200, compute capability 9.0" in line for line in machine_lines(machine.look(tmp_path), found))


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("raise SystemExit('cannot open shared object')", "asking for GPUs failed: cannot open shared object"),
        ("import os; os.kill(os.getpid(), 11)", "asking for GPUs failed: exit code -11"),
        ("print('{\"gpus\": []}')", "torch counts none"),
        ('print(\'{"why_none": "torch is built without CUDA"}\')', "torch is built without CUDA"),
    ],
)
def test_what_goes_wrong_is_why_there_are_none(tmp_path: Path, program: str, why: str) -> None:
    assert ask(tmp_path, program) == Gpus((), why)


def test_a_driver_that_hangs_hangs_nobody(tmp_path: Path) -> None:
    assert ask(tmp_path, "import threading; threading.Event().wait()", 1.0) == Gpus(
        (), "the driver did not answer within 1 s"
    )


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built with CUDA here")
def test_a_torch_without_cuda_says_so(tmp_path: Path) -> None:
    why = gpus.look(with_driver(tmp_path), patience_s=PATIENCE_S).why_none
    assert why == f"a driver is loaded, but torch {torch.__version__} is built without CUDA"


# -- models ------------------------------------------------------------------------------------------------------------


def test_the_torch_runner_is_tried_with_its_attention_and_as_a_whole(folder: Path) -> None:
    verdict = examined(folder, workers__runner="torch")
    assert (verdict.runner, verdict.attention, verdict.device) == ("torch", "torch", "cpu")
    assert set(verdict.reasons) == {"vllm-flash-attn", "xformers", "triton"}
    assert [test.passed for test in verdict.tests] == [True, True]
    assert verdict.healthy
    shown = "\n".join(model_lines(verdict))
    assert "not xformers: it runs on cuda only" in shown
    assert "torch is right: error" in shown


def test_the_fused_step_is_tried_where_it_serves(folder: Path) -> None:
    verdict = examined(folder)
    if verdict.runner != "cpu":
        assert any("fused step" in remark for remark in verdict.remarks), "then it says why not"
        pytest.skip(verdict.remarks[0])
    assert verdict.attention.startswith("part of the fused step")
    assert [test.passed for test in verdict.tests] == [True]


def test_int8_is_told_and_tried_where_it_serves(folder: Path) -> None:
    verdict = examined(folder, model__quantization="int8")
    if why := unusable("float32", "int8"):
        assert not verdict.healthy
        assert any("model.quantization int8 cannot be computed here" in problem for problem in verdict.problems)
        pytest.skip(why)
    assert (verdict.runner, verdict.dtype) == ("cpu", "float32, int8 weights")
    assert [test.passed for test in verdict.tests] == [True]
    assert verdict.tests[0].error > 1e-3, "it was tried with int8"
    assert any("float32, int8 weights" in line for line in model_lines(verdict))


def test_a_backend_that_computes_wrong_is_found_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = TorchAttention.forward

    def off(self: TorchAttention, *args: Any) -> torch.Tensor:
        return right(self, *args) * 1.01

    monkeypatch.setattr(TorchAttention, "forward", off)
    verdict = examined(folder, workers__runner="torch")
    assert not verdict.healthy
    assert any("WRONG" in line for line in model_lines(verdict))


def test_a_backend_that_looks_one_key_too_far_is_found_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = TorchAttention.plan

    def off(self: TorchAttention, batch: AttnBatch) -> None:
        right(self, replace(batch, kv_lens=[length + 1 for length in batch.kv_lens]))

    monkeypatch.setattr(TorchAttention, "plan", off)
    assert not examined(folder, workers__runner="torch").healthy


def test_a_forward_pass_that_computes_wrong_is_found_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention is right here, what is around it is not: in one dtype, so that the judge is not wrong alike."""
    right = torch_decoder.rotate
    monkeypatch.setattr(
        torch_decoder, "rotate", lambda x, *args: right(x, *args) * (1.1 if x.dtype is torch.bfloat16 else 1.0)
    )
    verdict = examined(folder, workers__runner="torch", model__dtype="bfloat16")
    assert [test.passed for test in verdict.tests] == [True, False]


def test_what_cannot_be_served_is_a_problem(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    verdicts = {
        "it runs on cuda only": examined(folder, workers__attention="xformers"),
        "workers.num_gpus is 1, and there is no GPU: no NVIDIA driver is loaded": examined(folder, workers__num_gpus=1),
        "GPT2LMHeadModel is not supported": examined(tmp_path),
        "lower engine.kv_tokens": examined(folder, engine__kv_tokens=2**40),
    }
    for text, verdict in verdicts.items():
        assert not verdict.healthy
        assert text in "\n".join(model_lines(verdict))


def test_packed_weights_are_reckoned_with_where_they_are_packed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the worker would refuse is found out before."""
    if why := unusable("float32"):
        pytest.skip(why)
    setup = ModelSetup.of(folder, kv_tokens=1024, dtype="float32")
    monkeypatch.setattr(model, "available_bytes", lambda: setup.num_pages * setup.page_bytes + 1)
    assert "its packed weights" in "\n".join(examined(folder, workers__runner="cpu").problems)
    assert examined(folder, workers__runner="torch").problems == []


def test_a_model_that_is_not_here_is_not_fetched() -> None:
    verdict = examined("some-org/some-model-that-nobody-has")
    assert verdict.healthy
    assert "fetches it, the doctor does not" in "\n".join(model_lines(verdict))


def test_a_gpu_that_is_not_used_is_remarked_upon(folder: Path) -> None:
    verdict = examined(folder, Gpus((Gpu("H200", (9, 0), 1, 1),)), workers__runner="toy")
    assert verdict.remarks[0] == "workers.num_gpus is 0: the GPU of this machine is not used"


@pytest.mark.parametrize("kind", ["llama-biases", "mistral", "qwen2", "qwen3-yarn", "llama-untied"])
def test_every_kind_of_model_has_a_small_one_to_try(kind: str, tmp_path: Path) -> None:
    tiny.save(kind, tmp_path)
    verdict = examined(tmp_path, workers__runner="torch")
    assert [test.passed for test in verdict.tests] == [True, True]
    assert ModelSetup.of(tmp_path).card.num_layers == 2


# -- the command -------------------------------------------------------------------------------------------------------


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("CONFIG", "MODEL")}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "cluster.cli", "doctor", *argv]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT
    )


@pytest.mark.slow
def test_the_command_tells_people_and_scripts_alike(folder: Path) -> None:
    settings = ("--set", "workers.runner=torch", "--set", "engine.kv_tokens=1024")
    told = run(str(folder), *settings)
    assert told.returncode == 0, told.stderr
    assert "  attention torch" in told.stdout
    done = run(str(folder), str(folder), "--json", *settings)
    report = json.loads(done.stdout)
    assert (done.returncode, report["healthy"], len(report["models"])) == (0, True, 2)
    assert report["models"][0]["tests"][0]["passed"]
    assert report["machine"]["packages"]["torch"] == torch.__version__


@pytest.mark.slow
def test_the_command_fails_where_the_model_could_not_be_served(folder: Path) -> None:
    done = run(str(folder), "--json", "--set", "workers.attention=xformers")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert not report["healthy"]
    assert report["models"][0]["problems"]
    mistake = run("--set", "nonsense")
    assert (mistake.returncode, mistake.stdout) == (1, "")
