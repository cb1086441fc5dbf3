"""The operator's threads: asleep when there is nothing to do, gone when the decoder is."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch

from kernels.cpu.library import Library
from tests.kernels.cpu.rig import SHAPE, Bench, Model

IDLE_S = 0.5


def opened(library: Library, threads: int) -> Bench:
    return Bench(Model.random(SHAPE, getattr(torch, library.variant.dtype)), library, threads)


def num_threads() -> int:
    """Of this process, Python's and others."""
    return len(list(Path("/proc/self/task").iterdir()))


def test_an_idle_team_sleeps(library: Library) -> None:
    """A worker that waits for requests leaves the cores to others."""
    bench = opened(library, threads=4)
    bench.step((bench.sequence(20), 20))
    before = time.process_time()
    threading.Event().wait(IDLE_S)
    assert time.process_time() - before < 0.2 * IDLE_S
    bench.close()


def test_closing_ends_the_threads(library: Library) -> None:
    before = num_threads()
    bench = opened(library, threads=4)
    assert num_threads() >= before + 3
    bench.close()
    bench.close()
    assert num_threads() < before + 3


def test_a_closed_decoder_is_an_error_and_no_crash(library: Library) -> None:
    bench = opened(library, threads=2)
    bench.step((bench.sequence(20), 20))
    assert sum(bench.decoder.times().values()) > 0
    bench.close()
    with pytest.raises(AssertionError, match="not open"):
        bench.decoder.times()
    with pytest.raises(AssertionError, match="not open"):
        bench.step((bench.sequence(20), 20))


def test_more_threads_than_cores_or_work_compute_the_same(library: Library) -> None:
    """I3: whoever comes for work gets it; nobody's absence or excess changes a bit."""
    results = []
    for threads in (1, 9):
        bench = opened(library, threads)
        sequence = bench.sequence(300)
        results.append(torch.cat([bench.step((sequence, count))[0] for count in (290, 1, 9)]))
        bench.close()
    assert torch.equal(*results)
