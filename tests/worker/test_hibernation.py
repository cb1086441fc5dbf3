"""Rule K7 from end to end within one worker: sessions whose KV does not fit sleep outside the cache and wake with their
next turn, and nobody can tell but by how little is computed again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.runner.base import ModelRunner
from actors.runner.toy import ToyRunner
from configs import HibernateConfig
from tests.worker.conversations import Conversations, until

PAGE = 4
PLENTY = 2**24


Make = Callable[..., Conversations]


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def conversations(tmp_path: Path, depth: int) -> Iterator[Make]:
    """Of a worker with 32 pages of 4 tokens, unless it is told otherwise. Files are in tmp_path / "kv"."""
    made: list[Conversations] = []

    def make(runner: ModelRunner | None = None, **settings: Any) -> Conversations:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        hibernate = HibernateConfig(**{"below": 0.95, "directory": str(tmp_path / "kv"), **settings})
        toy = ToyRunner(page_size=PAGE, kv_tokens=32 * PAGE, max_context=32 * PAGE)
        made.append(Conversations(folder, runner or toy, hibernate, depth))
        return made[-1]

    yield make
    for one in made:
        one.shell.stop()
        assert one.shell.loop_error is None
        one.store.shut()
    assert not (tmp_path / "kv").exists() or os.listdir(tmp_path / "kv") == []


def files_in(folder: Path) -> list[Path]:
    return sorted((folder / "kv").glob("*/*.kv"))


NAMES = tuple(f"s{number}" for number in range(9))
BUDGETS = {
    "memory": {"host_bytes": PLENTY},
    "files": {"host_bytes": 0, "disk_bytes": PLENTY},
    "both": {"host_bytes": 40 * PAGE * 8, "disk_bytes": PLENTY},
}


@pytest.mark.parametrize("budgets", BUDGETS.values(), ids=BUDGETS)
def test_sleeping_sessions_go_on_where_they_were(conversations: Make, tmp_path: Path, budgets: dict[str, int]) -> None:
    """K7: nine sessions of up to 30 pages share a cache of 32. Each turn says what it would have said alone, and has
    nothing to compute but its own input and what is less than a page. Closed sessions leave nothing."""
    worker = conversations(**budgets)
    worker.open(*NAMES)
    for _ in range(4):
        for name in NAMES:
            kept = worker.kept(name)
            end = worker.turn(name)
            assert worker.outputs_are_right(name)
            assert kept <= end.cached_tokens <= kept + PAGE
            worker.sleep(name)
    figures = worker.figures()
    assert figures["images"] == len(NAMES)
    assert figures["host_pages"] + figures["disk_pages"] == sum(map(worker.kept, NAMES)) // PAGE
    assert figures["woken_turns"] >= 2 * len(NAMES)
    assert (figures["missed_pages"], figures["failed_reads"], figures["lost_pages"]) == (0, 0, 0)
    assert bool(files_in(tmp_path)) == bool(budgets.get("disk_bytes"))
    worker.close(*NAMES)
    until(worker.nothing_is_left)
    assert files_in(tmp_path) == []


def test_without_budgets_nothing_sleeps_and_all_is_prefilled(conversations: Make) -> None:
    """The measure for the others: the same conversations cost a prefill of their history each."""
    worker = conversations(host_bytes=0)
    worker.open(*NAMES)
    for _ in range(3):
        ends = [worker.turn(name) for name in NAMES]
        assert worker.outputs_are_right(*NAMES)
    assert sum(end.cached_tokens for end in ends) == 0
    assert worker.shell.stats()["evicted_slots"]
    assert set(worker.figures().values()) == {0}


@pytest.mark.parametrize("budgets", BUDGETS.values(), ids=BUDGETS)
def test_all_sessions_at_once(conversations: Make, budgets: dict[str, int]) -> None:
    """K7, K5: turns that wake, run and give way to each other at the same time."""
    runner = ToyRunner(page_size=PAGE, kv_tokens=48 * PAGE, max_context=40 * PAGE, step_s=0.0005)
    worker = conversations(runner, **budgets)
    worker.open(*NAMES)
    for _ in range(4):
        worker.turns(*NAMES)
        assert worker.outputs_are_right(*NAMES)
    assert worker.figures()["loaded_pages"]
    worker.close(*NAMES)
    until(worker.nothing_is_left)


def test_a_damaged_file_costs_a_prefill_and_nothing_else(conversations: Make, tmp_path: Path) -> None:
    """K7: silently to the user, visibly in the figures."""
    worker = conversations(host_bytes=0, disk_bytes=PLENTY)
    worker.open(*NAMES)
    for _ in range(2):
        for name in NAMES:
            worker.turn(name)
            worker.sleep(name)
    for path in files_in(tmp_path):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    prefilled = 0
    for name in NAMES[:4]:
        kept = worker.kept(name)
        prefilled += worker.turn(name).cached_tokens < kept
        assert worker.outputs_are_right(name)
        worker.sleep(name)
    figures = worker.figures()
    assert figures["failed_reads"] == prefilled >= 2
    assert figures["missed_pages"] > 0
    kept = worker.kept(NAMES[0])
    assert worker.turn(NAMES[0]).cached_tokens >= kept  # Copied anew, it sleeps and wakes as before.
    assert worker.outputs_are_right(NAMES[0])
    worker.close(*NAMES)
    until(worker.nothing_is_left)
    assert files_in(tmp_path) == []


def test_files_that_are_gone_cost_a_prefill_and_nothing_else(conversations: Make, tmp_path: Path) -> None:
    """K7: somebody has cleaned up."""
    worker = conversations(host_bytes=0, disk_bytes=PLENTY)
    worker.open(*NAMES)
    for name in NAMES:
        worker.turn(name)
        worker.sleep(name)
    for path in files_in(tmp_path):
        path.unlink()
    for name in NAMES:
        worker.turn(name)
    assert worker.outputs_are_right(*NAMES)
    assert worker.figures()["failed_reads"]


@pytest.mark.parametrize(
    "budgets", [{"host_bytes": 1000}, {"host_bytes": 300, "disk_bytes": 900}], ids=["host", "both"]
)
def test_budgets_too_small_for_all_keep_those_last_used(conversations: Make, budgets: dict[str, int]) -> None:
    """K7: what was lost is prefilled; what is held stays within the budgets all the time."""
    worker = conversations(**budgets)
    worker.open(*NAMES)
    for _ in range(3):
        for name in NAMES:
            worker.turn(name)
            assert worker.outputs_are_right(name)
            figures = worker.figures()
            assert figures["host_bytes"] <= budgets["host_bytes"]
            assert figures["disk_bytes"] <= budgets.get("disk_bytes", 0)
    worker.turns(*NAMES)
    assert worker.outputs_are_right(*NAMES)
    assert worker.figures()["lost_pages"]
    worker.close(*NAMES)
    until(worker.nothing_is_left)


class Breaking(ToyRunner):
    """Every third copy raises."""

    copies = 0

    def _count(self) -> None:
        self.copies += 1
        if self.copies % 3 == 0:
            raise RuntimeError("device lost")

    def read_pages(self, pages: Any) -> Any:
        self._count()
        return super().read_pages(pages)

    def write_pages(self, pages: Any, data: bytes) -> Any:
        self._count()
        return super().write_pages(pages, data)


def test_copies_that_raise_are_made_up_for(conversations: Make) -> None:
    """K7: the loop waits for no answer in vain."""
    worker = conversations(Breaking(page_size=PAGE, kv_tokens=32 * PAGE, max_context=32 * PAGE), host_bytes=PLENTY)
    worker.open(*NAMES)
    for _ in range(4):
        for name in NAMES:
            worker.turn(name)
        assert worker.outputs_are_right(*NAMES)
    assert worker.figures()["failed_copies"]
    worker.close(*NAMES)
    until(worker.nothing_is_left)


def test_a_worker_that_stops_while_sessions_sleep_removes_their_files(conversations: Make, tmp_path: Path) -> None:
    worker = conversations(host_bytes=0, disk_bytes=PLENTY)
    worker.open(*NAMES)
    for name in NAMES:
        worker.turn(name)
    worker.sleep(NAMES[-1])
    assert files_in(tmp_path)
    worker.shell.stop()
    assert os.listdir(tmp_path / "kv") == []
