"""Decodes that are captured once and replayed with other rows, lengths and pages."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.attention import AttnConfig
from kernels.lens import device_lens, graph_batch, refill
from kernels.selftest import make_problem
from kernels.torch_ref import TorchAttention
from tests.kernels.attention.recorder import Recorder
from tests.kernels.attention.subjects import GPU

pytest.importorskip("triton", reason="triton is not installed")
from kernels.triton_paged.backend import TritonAttention

pytestmark = pytest.mark.skipif(GPU, reason="the recorder stands for a GPU's graphs; they are tested themselves there")

MAX_CONTEXT = 320
CONFIG = AttnConfig(4, 2, 16, torch.float32, torch.device("cpu"), 16, 0.25, max_context=MAX_CONTEXT)


@pytest.mark.parametrize("window", [None, 20])
def test_a_replay_equals_the_step_itself_whatever_the_rows(monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    """Fewer rows than the graph has, other lengths, other pages; the rest of the batch is padding and comes out 0."""
    recorder = Recorder(monkeypatch)
    config = replace(CONFIG, sliding_window=window)
    backend = TritonAttention(config)
    batch = graph_batch(backend, 4, MAX_CONTEXT)
    num_pages = 64
    pools = torch.zeros(2, num_pages, 16, 2, 16)
    q, k, v = torch.zeros(4, 4, 16), torch.zeros(4, 2, 16), torch.zeros(4, 2, 16)

    def work() -> torch.Tensor:
        backend.write_kv(k, v, pools[0], pools[1], batch)
        return backend.forward(q, pools[0], pools[1], batch)

    out, replay = recorder.capture(work)
    assert not out.any(), "captured empty"
    for seed, lens in enumerate([[7, 300, 16], [1], [17, 33, 290, 64]]):
        problem = make_problem(config, [(1, length) for length in lens], seed=seed)
        rows = len(lens)
        size = len(problem.k_pool)
        pools[:, :size] = torch.stack((problem.k_pool, problem.v_pool))
        slots = problem.batch.slots
        k[:rows], v[:rows] = (pool.flatten(0, 1)[slots] for pool in (problem.k_pool, problem.v_pool))
        pools.flatten(1, 2)[:, slots] = 0  # The step writes them itself.
        q[:rows] = problem.q
        refill(batch, problem.batch, 16)
        replay()
        assert torch.equal(out[:rows], problem.solve(TritonAttention(config)))
        assert not out[rows:].any()
    assert (recorder.captures, recorder.replays) == (1, 3)


@pytest.mark.parametrize("rows", range(1, 10))
def test_lengths_lie_where_a_compiled_kernel_expects_them(rows: int) -> None:
    """Triton compiles a kernel once more for addresses that are no multiple of 16: seconds, in the middle of a step."""
    lens = device_lens(make_problem(CONFIG, [(1, length) for length in range(1, rows + 1)]).batch)
    begin = lens.q_start.untyped_storage().data_ptr()
    assert [(each.data_ptr() - begin) % 16 for each in (lens.q_start, lens.kv_start, lens.kv_lens)] == [0, 0, 0]
    assert lens.q_start.tolist() == list(range(rows + 1))
    assert lens.kv_start.tolist() == [row * (row + 1) // 2 for row in range(rows + 1)]
    assert lens.kv_lens.tolist() == list(range(1, rows + 1))


def test_the_recorder_notices_what_a_graph_would_not_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch backend plans by what the host knows: its replay repeats the lengths of the capture."""
    recorder = Recorder(monkeypatch)
    backend = TorchAttention(CONFIG)
    problem = make_problem(CONFIG, [(1, 20)])
    backend.plan(problem.batch)
    out, replay = recorder.capture(lambda: problem.solve(backend))
    before = out.clone()
    problem.batch.kv_lens = [9]
    replay()
    assert torch.equal(out, before)
    assert not torch.allclose(problem.solve(backend), before, atol=1e-3)


def test_a_backend_that_cannot_be_captured_says_so() -> None:
    with pytest.raises(AssertionError, match="torch cannot be captured"):
        graph_batch(TorchAttention(CONFIG), 2, MAX_CONTEXT)


def test_a_graph_is_for_decodes_that_fit() -> None:
    backend = TritonAttention(CONFIG)
    batch = graph_batch(backend, 2, MAX_CONTEXT)
    for rows in ([(1, 3), (2, 4)], [(1, 3), (1, 3), (1, 3)]):
        with pytest.raises(AssertionError, match="as many as it has room for"):
            refill(batch, make_problem(CONFIG, rows).batch, 16)


def test_splits_are_by_the_longest_row_there_may_be() -> None:
    """Never by those that are there: a graph's grid is fixed, and a row's bits do not depend on its neighbours."""
    from kernels.triton_paged.backend import MAX_SPLITS, split_for

    assert split_for(0) == split_for(16384) == 256
    assert split_for(16385) == 512
    for context in (1, 4096, 131072, 1_000_000):
        assert -(-context // split_for(context)) <= MAX_SPLITS
