"""The operator's threads: asleep when there is nothing to do, gone when the decoder is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.cpu.library import Library
from tests.kernels.cpu.rig import SHAPE, Bench, Model, Running

IDLE_S = 0.5
LONG_S = 60.0


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


@pytest.mark.parametrize("threads", [0, -1])
def test_there_is_no_team_of_nobody(library: Library, threads: int) -> None:
    with pytest.raises(RuntimeError, match="threads to compute with"):
        opened(library, threads)


def test_more_threads_than_cores_or_work_compute_the_same(library: Library) -> None:
    """I3: whoever comes for work gets it; nobody's absence or excess changes a bit."""
    results = []
    for threads in (1, 9):
        bench = opened(library, threads)
        sequence = bench.sequence(300)
        results.append(torch.cat([bench.step((sequence, count))[0] for count in (290, 1, 9)]))
        bench.close()
    assert torch.equal(*results)


@contextmanager
def slowed(threads: set[int]) -> Iterator[None]:
    """These threads of this process get a tenth of a core, all together: a process that never rests has the others."""
    core = {min(os.sched_getaffinity(0))}
    hog = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {core})\nwhile True: pass"])
    try:
        for thread in threads:
            os.sched_setaffinity(thread, core)
            os.setpriority(os.PRIO_PROCESS, thread, 10)
        yield
    finally:
        hog.kill()
        hog.wait()


def thread_ids() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


@pytest.mark.parametrize("quantization", ["", "int8"])
def test_a_thread_that_is_taken_off_its_core_holds_nobody_up(library: Library, quantization: str) -> None:
    """Others do what it has begun, and what it does afterwards, late as it is, changes nothing: prompts long enough for
    tiles that are split, rows few enough for each member to prepare alone, and so many that layers share spaces."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core only: the threads cannot be kept apart")
    plan = [(290,), (1,), (1, 40), (1, 1), (60, 1), *[(1,), (1, 40), (1, 1), (30, 1), (1, 1)] * 5, (30, 140)]

    def computed(bench: Bench, sequences: list[Running]) -> Tensor:
        for sequence in sequences:
            sequence.done = 0
        return torch.cat([out for counts in plan for out in bench.step(*zip(sequences, counts, strict=False))])

    model = Model.random(replace(SHAPE, layers=7), getattr(torch, library.variant.dtype))
    alone = Bench(model, library, threads=1, quantization=quantization)
    right = computed(alone, [alone.sequence(560), alone.sequence(400)])
    alone.close()
    before = thread_ids()
    bench = Bench(model, library, threads=3, quantization=quantization)
    sequences = [bench.sequence(560), bench.sequence(400)]
    with slowed(thread_ids() - before):
        deadline = time.monotonic() + LONG_S
        rounds = 0
        while (rounds < 5 or not bench.decoder.repeats()) and time.monotonic() < deadline:
            assert torch.equal(computed(bench, sequences), right)
            rounds += 1
        assert bench.decoder.repeats() > 0
    bench.close()


def kept_to(threads: set[int]) -> list[int]:
    """The cores of those that have one only."""
    allowed = (os.sched_getaffinity(thread) for thread in threads)
    return sorted(core for cores in allowed if len(cores) == 1 for core in cores)


def test_as_many_threads_as_cores_have_one_each(library: Library) -> None:
    """Two on one core would wait for each other while another is idle. The caller is as free as before, afterwards."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("there is one core only")
    for threads, kept in ((len(cores), sorted(cores)[1:]), (len(cores) + 1, [])):
        before = thread_ids()
        bench = opened(library, threads)
        bench.step((bench.sequence(20), 20))
        assert kept_to(thread_ids() - before) == kept
        assert os.sched_getaffinity(0) == cores
        bench.close()
