"""Pages that are copied beside the steps: the orders that matter, on a device that runs its streams as it likes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.engine.plan import PlanItem, StepPlan
from actors.messages import SamplingParams
from actors.runner.torch.local_model import LocalModel
from actors.runner.torch.overlapped import OverlappedRunner
from actors.runner.torch.runner import TorchRunner
from actors.runner.torch.side_copies import Mark, SideCopies
from kernels.attention import AttnBatch
from tests.runner import tiny

PAGES, SIZE = 6, 4


class End:
    """Implements `Mark`: the end of some work, which `device` comes to when it wants to, or has to."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.over = False

    def query(self) -> bool:
        return self.over

    def synchronize(self) -> None:
        while not self.over:
            self._device.advance()


class Device:
    """Implements `Streams`: what it is given it does later, in the order of each stream, and between the streams in
    any that the waits allow. `forks`, `joins`: whether it heeds them, as a real one does."""

    def __init__(self, seed: int, *, forks: bool = True, joins: bool = True) -> None:
        self._random = random.Random(seed)
        self._forks, self._joins = forks, joins
        self._compute: deque[Callable[[], bool]] = deque()
        self._side: deque[Callable[[], bool]] = deque()

    def compute(self, work: Callable[[], None]) -> None:
        self._compute.append(lambda: self._do(work))

    def beside(self, work: Callable[[], None]) -> Mark:
        before, end = End(self), End(self)
        self._compute.append(lambda: self._pass(before))
        if self._forks:
            self._side.append(before.query)
        self._side.append(lambda: self._do(work))
        self._side.append(lambda: self._pass(end))
        return end

    def after(self, mark: Mark) -> None:
        if self._joins:
            self._compute.append(mark.query)

    def advance(self) -> None:
        """One thing of one stream, if it can be done yet."""
        streams = [stream for stream in (self._compute, self._side) if stream]
        assert streams, "nothing is left to be done, and somebody waits"
        stream = self._random.choice(streams)
        if stream[0]():
            stream.popleft()

    def finish(self) -> None:
        while self._compute or self._side:
            self.advance()

    @staticmethod
    def _do(work: Callable[[], None]) -> bool:
        work()
        return True

    @staticmethod
    def _pass(mark: End) -> bool:
        mark.over = True
        return True


class Script:
    """Steps and copies at random, and what each must have seen: all that was launched before it and nothing later."""

    def __init__(self, seed: int, **heeds: bool) -> None:
        self._random = random.Random(seed)
        self.device = Device(seed, **heeds)
        self.kv = torch.zeros(1, 2, PAGES, SIZE, 1, 1)
        self.truth = torch.zeros(PAGES)
        self.told: list[int] = []
        self.copies = SideCopies(self.kv, self.device, self.told.extend)
        self.checks: list[tuple[str, Callable[[], torch.Tensor], torch.Tensor]] = []

    def run(self, length: int) -> list[str]:
        """What went wrong."""
        for number in range(1, length + 1):
            pages = self._random.sample(range(PAGES), 2)
            self._random.choice([self.step, self.read, self.write])(pages, float(number))
            for _ in range(self._random.randrange(4)):
                if self.device._compute or self.device._side:
                    self.device.advance()
        self.device.finish()
        wrong = [name for name, seen, expected in self.checks if not torch.equal(seen(), expected)]
        return wrong if torch.equal(self.kv[0, 0, :, 0, 0, 0], self.truth) else [*wrong, "in the end"]

    def step(self, pages: list[int], value: float) -> None:
        """Reads the first page, writes to the second."""
        first, second = pages
        slots = torch.arange(second * SIZE, (second + 1) * SIZE)
        self.copies.before(AttnBatch([SIZE], [2 * SIZE], torch.tensor([pages]), slots, 0))
        seen = torch.full((1,), torch.nan)

        def work() -> None:
            seen.copy_(self.kv[0, 0, first, 0, 0])
            self.kv[:, :, second] = value

        self.device.compute(work)
        self.checks.append(("a step", lambda: seen, self.truth[[first]].clone()))
        self.truth[second] = value

    def read(self, pages: list[int], value: float) -> None:
        host = self.copies.room(len(pages)).fill_(torch.nan)
        self.copies.begin_read(pages, host)
        self.checks.append(("a copy", lambda: host[:, 0, 0, 0, 0, 0], self.truth[pages].clone()))

    def write(self, pages: list[int], value: float) -> None:
        self.copies.begin_write(pages, torch.full((2 * 2 * SIZE,), value))
        self.truth[pages] = value


@pytest.mark.parametrize("seed", range(100))
def test_everybody_sees_what_was_launched_before_and_nothing_later(seed: int) -> None:
    """K7: a copy never reads a page before the step that wrote it, and no page is used again before its copy ended."""
    assert not Script(seed).run(30)


@pytest.mark.parametrize("deaf", ["forks", "joins"])
def test_a_device_that_heeds_no_waits_is_found_out(deaf: str) -> None:
    """Both orders carry weight, and the test above can fail."""
    assert any(Script(seed, **{deaf: False}).run(30) for seed in range(20))


def test_a_step_waits_for_copies_of_its_own_pages_only() -> None:
    """A turn does not wait for the copies of others' pages, nor does one that reads what is being read."""
    device = Device(0)
    copies = SideCopies(torch.zeros(1, 2, PAGES, SIZE, 1, 1), device, lambda pages: None)
    copies.begin_read([2], copies.room(1))
    copies.begin_write([3], torch.zeros(2 * SIZE))
    given = len(device._compute)
    copies.before(AttnBatch([1], [SIZE + 1], torch.tensor([[2, 4]]), torch.tensor([4 * SIZE]), 1))
    assert len(device._compute) == given
    copies.before(AttnBatch([1], [SIZE + 1], torch.tensor([[4, 2]]), torch.tensor([2 * SIZE]), 1))
    copies.before(AttnBatch([1], [SIZE + 1], torch.tensor([[3, 4]]), torch.tensor([4 * SIZE]), 1))
    assert len(device._compute) == given + 2


def test_closing_waits_for_what_is_under_way_and_what_is_over_is_forgotten() -> None:
    device = Device(0)
    kv = torch.ones(1, 2, PAGES, SIZE, 1, 1)
    copies = SideCopies(kv, device, lambda pages: None)
    host = copies.room(1).zero_()
    end = copies.begin_read([2], host)
    assert not end.query()
    copies.close()
    assert end.query()
    assert host.eq(1).all()
    for page in (-1, PAGES):
        with pytest.raises(IndexError, match=f"there is no page {page}"):
            copies.begin_read([page], copies.room(1))


# -- with a runner -------------------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {"dtype": "float32", "kv_tokens": 256, "page_size": 16}


def item(start: int, tokens: list[int], pages: list[int]) -> PlanItem:
    return PlanItem(1, start, len(tokens), tokens, pages, True, False, SamplingParams(), start, 20)


def sampled(runner: TorchRunner, *items: PlanItem) -> int:
    return runner.launch(StepPlan(1, items)).wait().sampled[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny.save("llama", path)
    return path


def beside(folder: Path) -> tuple[OverlappedRunner, Device]:
    """A runner whose copies are made when somebody waits for them. What it computes, it computes at once, as a CPU
    does: so a step that has to come after a copy makes it happen."""

    class Eager(Device):
        def after(self, mark: Mark) -> None:
            mark.synchronize()

    runner, device = OverlappedRunner(folder, **SETTINGS), Eager(0)
    model = runner._loaded()
    assert isinstance(model, LocalModel)
    runner._copies = SideCopies(model.kv, device, model.overwritten)
    return runner, device


def test_steps_are_computed_while_pages_leave(folder: Path) -> None:
    """K7, A6: the thread that launches steps waits for no copy; the bytes are those of the torch runner."""
    plain, (runner, device) = TorchRunner(folder, **SETTINGS), beside(folder)
    prompt = tiny.prompt(20)
    first = sampled(plain, item(0, prompt, [2, 5]))
    assert sampled(runner, item(0, prompt, [2, 5])) == first
    leaving = runner.read_pages([5, 2])
    assert sampled(runner, item(0, prompt, [3, 4])) == first
    assert device._side, "the copy has not been made yet"
    data = leaving.wait()
    assert data == plain.read_pages([5, 2]).wait()
    assert len(data) == 2 * runner.info.page_bytes
    plain.close()
    runner.close()


def test_pages_that_came_back_are_those_that_left(folder: Path) -> None:
    """K7: elsewhere, and used at once, though nobody waited."""
    runner, _ = beside(folder)
    prompt = tiny.prompt(20)
    first = sampled(runner, item(0, prompt, [2, 5]))
    expected = sampled(runner, item(20, [first], [2, 5]))
    data = runner.read_pages([2, 5]).wait()
    coming = runner.write_pages([7, 8], data)
    assert sampled(runner, item(20, [first], [7, 8])) == expected
    coming.wait()
    with pytest.raises(ValueError, match="bytes for 1 pages"):
        runner.write_pages([7], data)
    with pytest.raises(IndexError, match="there is no page 99"):
        runner.write_pages([7, 99], data).wait()
    with pytest.raises(IndexError, match="there is no page -1"):
        runner.read_pages([-1]).wait()
    assert runner.read_pages([]).wait() == b""
    runner.write_pages([], b"").wait()
    runner.close()


def test_a_page_that_is_used_again_leaves_as_it_was(folder: Path) -> None:
    """K7: even if the engine gave it away too early."""
    runner, _ = beside(folder)
    sampled(runner, item(0, tiny.prompt(20), [2, 5]))
    before = runner.read_pages([2, 5]).wait()
    leaving = runner.read_pages([2, 5])
    sampled(runner, item(0, tiny.prompt(20, seed=1), [2, 5]))
    assert leaving.wait() == before
    assert runner.read_pages([2, 5]).wait() != before
    left = runner.read_pages([2])
    runner.close()
    assert len(left.wait()) == runner.info.page_bytes
