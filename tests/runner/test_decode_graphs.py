"""Decodes that are captured once and replayed: the runner's tokens are what they are without."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FunctionType, MethodType, ModuleType, SimpleNamespace

import pytest
import torch

from actors.engine.plan import PlanItem, StepPlan
from actors.messages import SamplingParams
from actors.runner.torch import runner as running
from actors.runner.torch.graphs import GraphedModel, buckets_up_to
from actors.runner.torch.group import RankGroup
from actors.runner.torch.inputs import StepInputs, build_inputs
from actors.runner.torch.local_model import LocalModel, StepModel, attention_for
from actors.runner.torch.runner import TorchRunner
from actors.runner.torch.setup import ModelSetup
from tests.engine.driver import Driver
from tests.kernels.attention.recorder import Recorder
from tests.runner import tiny

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the recorder is for CPUs")

MAX_ROWS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny.save("llama-untied", path)
    return path


def inputs(rows: list[tuple[int, int]], samples: Callable[[int], bool] = lambda uid: True) -> StepInputs:
    """(start, count) of each row; row i's pages are 2 + 8 i … in descending order."""
    items = []
    for uid, (start, count) in enumerate(rows):
        pages = list(range(9 + 8 * uid, 1 + 8 * uid, -1))
        tokens = [3 + (uid * 17 + place * 5) % 190 for place in range(start, start + count)]
        items.append(PlanItem(uid, start, count, tokens, pages, samples(uid), False, SamplingParams(), 0, start))
    return build_inputs(StepPlan(1, tuple(items)), 16)


@torch.inference_mode()
def test_steps_equal_those_computed_as_they_come(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, then decodes of one, two and three rows in any order, then more rows than there are graphs for."""
    recorder = Recorder(monkeypatch)
    setup = ModelSetup.of(folder, dtype="float32", kv_tokens=16 * 40, attention="triton")
    graphed = GraphedModel(setup, attention_for(setup)[0], recorder, MAX_ROWS)
    plain = LocalModel(setup, attention_for(setup)[0])
    assert recorder.captures == len(buckets_up_to(MAX_ROWS)) == 3
    lens = [5, 17, 40, 16]
    steps = [inputs([(0, length) for length in lens])]
    steps += [inputs([(length, 1) for length in lens[:rows]]) for rows in (3, 1, 2)]
    steps += [
        inputs([(length + 1, 1) for length in lens[:3]], lambda uid: uid != 1),
        inputs([(length + 2, 1) for length in lens]),
        inputs([(lens[0] + 3, 1), (lens[1] + 2, 4)]),
    ]
    for step in steps:
        assert torch.equal(graphed.step(step), plain.step(step))
    assert recorder.replays == 4, "decodes of up to three rows are replayed, nothing else is"
    assert torch.equal(graphed.kv[:, :, 2:], plain.kv[:, :, 2:]), "padding writes to the dump page only"
    assert not graphed.kv[:, :, 0].any(), "nothing writes to the null page"


def test_a_conversation_is_the_same_with_graphs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3, K4: greedy and sampled requests that come and go, so that batches grow and shrink through all buckets."""
    recorder = Recorder(monkeypatch)

    class Graphed(TorchRunner):
        def _how(self, setup: ModelSetup, group: RankGroup | None, threads: int) -> tuple[str, Callable[[], StepModel]]:
            backend, self.attention_reasons = attention_for(setup)
            return "graphs", lambda: GraphedModel(setup, backend, recorder, MAX_ROWS)

    settings = {"dtype": "float32", "kv_tokens": 1024, "page_size": 16}
    outputs = []
    for runner in (TorchRunner(folder, **settings), Graphed(folder, **settings, attention="triton")):  # type: ignore[arg-type]
        driver = Driver(runner)
        told = [
            driver.submit(
                f"r{index}",
                tiny.prompt(9 + 7 * index),
                sampling=SamplingParams(max_tokens=3 + 2 * index, ignore_eos=True, temperature=index % 2, seed=index),
            )
            for index in range(4)
        ]
        driver.run(steps=200)
        outputs.append([one.ids for one in told])
        runner.close()
    assert outputs[0] == outputs[1]
    assert recorder.replays >= 5


def memory_held_by(owner: object) -> set[int]:
    """Addresses of tensors that are reached from attributes of `owner`, not by functions: a graph's replay has none."""
    seen, ahead, found = set(), [owner], set()
    while ahead:
        each = ahead.pop()
        if id(each) in seen or isinstance(each, (type, ModuleType, FunctionType, MethodType)):
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            found.add(each.untyped_storage().data_ptr())
        else:
            ahead += gc.get_referents(each)
    return found


def test_what_a_graph_reads_is_kept_as_long_as_the_graph(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph knows addresses only: memory that nobody keeps is given to somebody else, and replays read what he
    writes."""
    recorder = Recorder(monkeypatch)
    setup = ModelSetup.of(folder, dtype="float32", kv_tokens=16 * 40, attention="triton")
    graphed = GraphedModel(setup, attention_for(setup)[0], recorder, MAX_ROWS)
    assert len(recorder.read) > 10
    assert not recorder.read - memory_held_by(graphed)


def test_graphs_share_what_is_large(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No two are replayed at once. A large model's would take gigabytes that nobody has reckoned with."""
    setup = ModelSetup.of(folder, dtype="float32", kv_tokens=16 * 40, attention="triton")
    graphs = GraphedModel(setup, attention_for(setup)[0], Recorder(monkeypatch), MAX_ROWS).graphs._graphs.values()
    assert len(graphs) == 3
    assert len({graph.logits.data_ptr() for graph in graphs}) == 1
    assert len({graph.batch.plan.means.untyped_storage().data_ptr() for graph in graphs}) == 1


@pytest.mark.parametrize("most", [1, 3, 8, 60, 64, 100, 128, 256, 300, 1000])
def test_buckets_hold_every_batch_up_to_the_largest(most: int) -> None:
    buckets = buckets_up_to(most)
    assert buckets == sorted(set(buckets))
    assert buckets[-1] == most
    for rows in range(1, most + 1):
        bucket = next(size for size in buckets if size >= rows)
        assert bucket < 2 * rows or bucket - rows < 8, "half is padding at most, but for a handful of rows"


@pytest.mark.parametrize(("graphs", "max_running", "rows"), [(True, 5, 5), (True, 200, 200), (False, 5, 0)])
def test_graphs_are_for_as_many_rows_as_may_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, graphs: bool, max_running: int, rows: int
) -> None:
    """A GPU's part, with what captures left out: no bucket above `engine.max_running`, and one that covers it."""
    runner = TorchRunner(folder, dtype="float32", kv_tokens=64, cuda_graphs=graphs, max_running=max_running)
    runner.close()
    setup = replace(runner._setup, device=torch.device("cuda"))
    backend = SimpleNamespace(graphs=True, description="some")
    monkeypatch.setattr(running, "attention_for", lambda setup, peers: (backend, {}))
    monkeypatch.setattr(running, "CudaCapturer", lambda device: "capturer")
    monkeypatch.setattr(running, "GraphedModel", lambda *given: ("graphed", *given[2:]))
    monkeypatch.setattr(running, "LocalModel", lambda *given: ("plain",))
    words, load = runner._how(setup, None, 1)
    assert load() == (("graphed", "capturer", rows) if rows else ("plain",))
    assert words.endswith(f"CUDA graphs of up to {rows} decodes" if rows else "1 threads")
