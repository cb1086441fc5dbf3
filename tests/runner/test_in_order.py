"""The cpu runner's work: in the order it was asked for, whoever does it."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest
import torch

from actors.engine.plan import PlanItem, StepPlan
from actors.messages import SamplingParams
from actors.runner.cpu.in_order import InOrder
from tests.kernels.cpu.builds import unusable
from tests.runner import tiny


def test_who_waits_does_what_came_before_too() -> None:
    jobs, done = InOrder(), []
    first, second, third = (jobs.submit(done.append, n) for n in range(3))
    assert done == []
    second.result()
    assert done == [0, 1]
    first.result()
    third.result()
    assert done == [0, 1, 2]


def test_an_error_is_its_own_askers() -> None:
    jobs = InOrder()
    bad, good = jobs.submit(int, "x"), jobs.submit(int, "7")
    assert good.result() == 7
    with pytest.raises(ValueError, match="invalid literal"):
        bad.result()


def test_an_error_can_be_asked_for() -> None:
    jobs = InOrder()
    assert isinstance(jobs.submit(int, "x").exception(), ValueError)
    assert jobs.submit(int, "7").exception() is None


def test_what_is_cancelled_is_left_out_and_harms_nothing_after_it() -> None:
    jobs, done = InOrder(), []
    _, second, third = (jobs.submit(done.append, n) for n in range(3))
    assert second.cancel()
    third.result()
    assert done == [0, 2]
    assert not third.cancel()
    with pytest.raises(CancelledError):
        second.result()


def test_one_thing_at_a_time_whoever_waits() -> None:
    """Many threads that ask and wait: nothing is done twice, beside something else, or out of its order."""
    jobs, asking = InOrder(), threading.Lock()
    asked: list[int] = []
    done: list[int] = []
    busy = threading.Lock()

    def work(number: int) -> None:
        assert busy.acquire(blocking=False)
        done.append(number)
        busy.release()

    def ask(thread: int) -> None:
        for n in range(200):
            with asking:
                asked.append(number := 1000 * thread + n)
                job = jobs.submit(work, number)
            job.result()

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == asked


def test_shutdown_does_what_is_left_and_takes_no_more() -> None:
    """Who still waits for a copy when the worker closes gets it."""
    jobs, done = InOrder(), []
    left = jobs.submit(done.append, 1)
    jobs.shutdown()
    jobs.shutdown()
    assert done == [1]
    assert left.result() is None
    with pytest.raises(RuntimeError, match="after shutdown"):
        jobs.submit(done.append, 2)


@pytest.fixture
def runner(saved: Any) -> Any:
    if why := unusable("float32"):
        pytest.skip(why)
    runner = tiny.cpu_runner(saved("wide-llama")[0])
    yield runner
    runner.close()


def step(ids: list[int], pages: list[int]) -> StepPlan:
    return StepPlan(1, (PlanItem(1, 0, len(ids), ids, pages, True, False, SamplingParams(), 0, len(ids)),))


def test_pages_are_read_as_they_were_when_they_were_asked_for(runner: Any) -> None:
    """K7: on another thread, after the step launched before it and before the one launched after."""
    ids, pages, told = tiny.prompt(16), [2, 3], {}
    first = runner.launch(step(ids, pages))
    read = runner.read_pages(pages)
    second = runner.launch(step(ids[::-1], pages))
    reader = threading.Thread(target=lambda: told.update(data=read.wait()))
    reader.start()
    second.wait()
    reader.join()
    first.wait()
    runner.launch(step(ids, pages)).wait()
    assert runner.read_pages(pages).wait() == told["data"]
    runner.launch(step(ids[::-1], pages)).wait()
    assert runner.read_pages(pages).wait() != told["data"]


def test_a_copy_that_waits_when_the_runner_closes_is_made(runner: Any) -> None:
    runner.launch(step(tiny.prompt(16), [2, 3])).wait()
    before, read = runner.read_pages([2]).wait(), runner.read_pages([2])
    runner.close()
    assert read.wait() == before
    with pytest.raises(RuntimeError, match="after shutdown"):
        runner.launch(step(tiny.prompt(16), [2, 3]))


def test_the_waiting_threads_torch_keeps_its_threads(runner: Any) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        runner.launch(step(tiny.prompt(16), [2, 3])).wait()
        runner.read_pages([2]).wait()
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
