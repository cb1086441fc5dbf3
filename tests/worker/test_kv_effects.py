"""From the engine's effects to copies of KV and back: what was saved is what is loaded, and every question is answered
once, whatever breaks."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.engine.effects import DropKV, KVLoaded, KVLost, KVSaved, LoadKV, SaveKV
from actors.runner.base import ModelRunner
from actors.runner.copied import Copied
from actors.runner.script import ScriptRunner
from actors.runner.toy import ToyRunner
from actors.worker.kv_effects import MAX_PIECE_PAGES, KVEffects
from configs import HibernateConfig

PAGE_BYTES = 16 * 8
PLENTY = 2**20


class Watched(ToyRunner):
    """Remembers its copies; holds one up, or breaks, when it is told to."""

    def __init__(self) -> None:
        super().__init__(kv_tokens=16 * 400)
        self.kv[:] = np.arange(self.kv.size, dtype=np.uint64).reshape(self.kv.shape)
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.held = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.breaks = ""

    def _call(self, kind: str, pages: Sequence[int]) -> None:
        self.calls.append((kind, tuple(pages)))
        self.held.set()
        assert self.go_on.wait(60)
        if self.breaks == kind:
            raise RuntimeError("device lost")

    def read_pages(self, pages: Sequence[int]) -> Copied[bytes]:
        self._call("read", pages)
        return super().read_pages(pages)

    def write_pages(self, pages: Sequence[int], data: bytes) -> Copied[None]:
        self._call("write", pages)
        return super().write_pages(pages, data)


class Bench:
    """Effects over a runner, and the mail that comes of them."""

    def __init__(self, runner: ModelRunner, **config: Any) -> None:
        self.mail: queue.Queue[object] = queue.Queue()
        self.runner = runner
        self.effects = KVEffects(runner, HibernateConfig(**config), self.mail.put)

    def save(self, session: int, pages: Sequence[int], first: int = 0) -> None:
        self.effects.perform(SaveKV(session=session, first=first, pages=tuple(pages)))

    def load(self, session: int, pages: Sequence[int], first: int = 0) -> None:
        self.effects.perform(LoadKV(session=session, first=first, pages=tuple(pages)))

    def drop(self, session: int) -> None:
        self.effects.perform(DropKV(session=session))

    def hear(self, count: int = 1) -> list[object]:
        return [self.mail.get(timeout=60) for _ in range(count)]

    def copied(self, there: Sequence[int], here: Sequence[int]) -> bool:
        runner = self.runner
        assert isinstance(runner, ToyRunner)
        return bool((runner.kv[list(there)] == runner.kv[list(here)]).all())


Make = Callable[..., Bench]


@pytest.fixture
def bench() -> Iterator[Make]:
    made: list[Bench] = []

    def make(runner: ModelRunner | None = None, **config: Any) -> Bench:
        made.append(Bench(runner or Watched(), **config))
        return made[-1]

    yield make
    for one in made:
        if isinstance(one.runner, Watched):
            one.runner.go_on.set()
        one.effects.close()
        assert one.mail.empty()
        stats = one.effects.stats()
        assert all(stats[name] == 0 for name in ("images", "host_bytes", "host_pages", "disk_bytes", "disk_pages"))
        one.runner.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "remora-hibernate"]


@pytest.fixture(params=["memory", "files", "both"])
def budgets(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return {
        "memory": {"host_bytes": PLENTY},
        "files": {"host_bytes": 0, "disk_bytes": PLENTY, "directory": str(tmp_path)},
        "both": {"host_bytes": 70 * PAGE_BYTES, "disk_bytes": PLENTY, "directory": str(tmp_path)},
    }[request.param]


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("remora-kv-*/*.kv"))


def test_saved_pages_come_back_to_others(bench: Make, budgets: dict[str, Any], tmp_path: Path) -> None:
    """K7."""
    one = bench(**budgets)
    one.save(1, range(2, 102))
    one.load(1, range(202, 302))
    one.load(1, range(310, 330), first=70)
    assert one.hear(3) == [KVSaved(session=1, pages=100), KVLoaded(session=1, pages=100), KVLoaded(session=1, pages=20)]
    assert one.copied(range(2, 102), range(202, 302))
    assert one.copied(range(72, 92), range(310, 330))
    stats = one.effects.stats()
    assert (stats["saved_pages"], stats["loaded_pages"], stats["images"]) == (100, 120, 1)
    assert stats["host_pages"] + stats["disk_pages"] == 100
    assert bool(stats["disk_pages"]) == bool(files_in(tmp_path))


def test_a_later_turn_saves_only_what_is_new(bench: Make, budgets: dict[str, Any]) -> None:
    one = bench(**budgets)
    one.save(1, range(2, 52))
    one.save(1, range(60, 70), first=49)
    one.load(1, range(202, 262))
    assert one.hear(3) == [KVSaved(session=1, pages=50), KVSaved(session=1, pages=59), KVLoaded(session=1, pages=59)]
    assert one.copied([*range(2, 51), *range(60, 70)], range(202, 261))


def test_copies_are_made_a_few_pages_at_a_time(bench: Make) -> None:
    """A decode step waits for a few pages, not for a session."""
    one = bench(host_bytes=PLENTY)
    one.save(1, range(2, 102))
    one.load(1, range(202, 302))
    one.hear(2)
    sizes = [len(pages) for _, pages in one.runner.calls]
    assert max(sizes) == MAX_PIECE_PAGES
    assert sizes == [32, 32, 32, 4] * 2


def test_what_is_asked_beyond_an_image_is_not_taken_for_it(bench: Make) -> None:
    """K7: pages were lost before the engine heard so."""
    one = bench(host_bytes=PLENTY)
    one.save(1, [2, 3], first=1)
    one.load(1, [10, 11])
    one.save(1, [2, 3])
    one.save(1, [4], first=3)
    one.load(1, [10, 11, 12], first=1)
    one.load(1, [10], first=2)
    assert one.hear(6) == [
        KVSaved(session=1, pages=0),
        KVLoaded(session=1, pages=0),
        KVSaved(session=1, pages=2),
        KVSaved(session=1, pages=2),
        KVLoaded(session=1, pages=1),
        KVLoaded(session=1, pages=0),
    ]
    assert one.copied([3], [10])


def test_a_session_that_gives_way_is_told(bench: Make) -> None:
    """K7: budgets. An image that fits in none is kept as far as it goes."""
    one = bench(host_bytes=10 * PAGE_BYTES)
    one.save(1, range(2, 8))
    one.save(2, range(12, 18))
    one.save(3, range(20, 40))
    assert one.hear(5) == [
        KVSaved(session=1, pages=6),
        KVLost(session=1, pages=0),
        KVSaved(session=2, pages=6),
        KVLost(session=2, pages=0),
        KVSaved(session=3, pages=10),
    ]
    assert one.effects.stats()["host_bytes"] == 10 * PAGE_BYTES
    assert one.effects.stats()["lost_pages"] == 12


@pytest.mark.parametrize(
    ("runner", "config"),
    [
        (None, {"host_bytes": 0}),
        (None, {"host_bytes": PAGE_BYTES - 1}),
        (ScriptRunner([65], vocab_bytes=[bytes([i]) for i in range(256)], eos_id=0), {"host_bytes": PLENTY}),
    ],
    ids=["no budget", "less than a page", "pages that cannot leave"],
)
def test_where_nothing_can_be_kept_every_question_is_answered_all_the_same(
    bench: Make, runner: ModelRunner | None, config: dict[str, Any]
) -> None:
    one = bench(runner, **config)
    one.save(1, [2, 3])
    one.load(1, [4, 5])
    assert one.hear(2) == [KVSaved(session=1, pages=0), KVLoaded(session=1, pages=0)]


def test_a_turn_that_waits_for_its_kv_goes_before_copies_made_ahead(bench: Make) -> None:
    """But not before what its own session has to save first."""
    one = bench(host_bytes=PLENTY)
    one.save(5, [50])
    one.hear()
    one.runner.go_on.clear()
    one.runner.held.clear()
    one.save(1, [10])
    assert one.runner.held.wait(60)
    one.save(2, [20])
    one.save(3, [30])
    one.load(3, [31])
    one.load(5, [51])
    one.runner.go_on.set()
    order = [(type(answer).__name__, answer.session) for answer in one.hear(5)]  # type: ignore[attr-defined]
    assert order == [("KVSaved", 1), ("KVSaved", 3), ("KVLoaded", 3), ("KVLoaded", 5), ("KVSaved", 2)]
    assert one.copied([30, 50], [31, 51])


def test_nothing_asked_ever_waits_for_a_copy(bench: Make) -> None:
    """The loop goes on while the runner copies: this would never end otherwise. Drops answer what they overtake."""
    one = bench(host_bytes=PLENTY)
    one.runner.go_on.clear()
    one.save(1, range(2, 102))
    assert one.runner.held.wait(60)
    one.save(2, [120])
    one.load(2, [121])
    one.save(3, [130])
    one.drop(2)
    one.drop(1)
    assert one.hear(2) == [KVSaved(session=2, pages=0), KVLoaded(session=2, pages=0)]
    assert one.effects.stats()["queued_copies"] == 3  # Session 3's, and two drops.
    one.runner.go_on.set()
    assert one.hear(2) == [KVSaved(session=1, pages=0), KVSaved(session=3, pages=1)]
    assert [pages for _, pages in one.runner.calls] == [tuple(range(2, 34)), (130,)]
    assert one.effects.stats()["images"] == 1


def test_a_load_that_is_dropped_meanwhile_ends_early(bench: Make) -> None:
    one = bench(host_bytes=PLENTY)
    one.save(1, range(2, 102))
    one.hear()
    one.runner.go_on.clear()
    one.runner.held.clear()
    one.load(1, range(202, 302))
    assert one.runner.held.wait(60)
    one.drop(1)
    one.save(1, [5])
    one.runner.go_on.set()
    assert one.hear(2) == [KVLoaded(session=1, pages=0), KVSaved(session=1, pages=1)]
    assert [len(pages) for kind, pages in one.runner.calls if kind == "write"] == [32]
    one.load(1, [300, 301])
    assert one.hear() == [KVLoaded(session=1, pages=1)]
    assert one.copied([5], [300])


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_copy_that_raises_is_answered_and_the_thread_lives_on(
    bench: Make, kind: str, budgets: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """K7: such an image is not kept; others are."""
    one = bench(**budgets)
    one.save(2, [7])
    one.save(1, range(2, 42))
    one.hear(2)
    one.runner.breaks = kind
    if kind == "read":
        one.save(1, [2], first=40)
        expected: object = KVSaved(session=1, pages=0)
    else:
        one.load(1, [202])
        expected = KVLoaded(session=1, pages=0)
    assert one.hear() == [expected]
    assert "device lost" in caplog.text
    one.runner.breaks = ""
    one.load(1, [202])
    one.load(2, [202])
    assert one.hear(2) == [KVLoaded(session=1, pages=0), KVLoaded(session=2, pages=1)]
    assert one.effects.stats()["failed_copies"] == 1


def test_pages_that_are_not_there_raise_and_are_answered(bench: Make) -> None:
    one = bench(host_bytes=PLENTY)
    one.save(1, [10**6])
    one.save(2, [5])
    assert one.hear(2) == [KVSaved(session=1, pages=0), KVSaved(session=2, pages=1)]
    one.load(2, [10**6])
    assert one.hear() == [KVLoaded(session=2, pages=0)]


def test_of_a_damaged_image_the_pages_before_come_back(bench: Make, tmp_path: Path) -> None:
    """K7: corrupt read."""
    one = bench(host_bytes=0, disk_bytes=PLENTY, directory=str(tmp_path))
    one.save(1, range(2, 102))
    one.hear()
    second = files_in(tmp_path)[1]
    second.write_bytes(second.read_bytes()[:-1] + b"!")
    one.load(1, range(202, 302))
    assert one.hear() == [KVLoaded(session=1, pages=32)]
    assert one.copied(range(2, 34), range(202, 234))
    one.save(1, range(34, 102), first=32)
    one.load(1, range(202, 302))
    assert one.hear(2) == [KVSaved(session=1, pages=100), KVLoaded(session=1, pages=100)]
    assert one.copied(range(2, 102), range(202, 302))
    assert one.effects.stats()["failed_reads"] == 1
    assert len(files_in(tmp_path)) == 4


def test_a_disk_that_is_full_is_told_and_leaves_nothing(
    bench: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K7: ENOSPC."""
    one = bench(host_bytes=0, disk_bytes=PLENTY, directory=str(tmp_path))
    one.save(1, range(2, 102))
    one.hear()

    def full(fd: int, data: memoryview) -> int:
        os.write(fd, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    assert one.effects._files is not None
    monkeypatch.setattr(one.effects._files, "_os_write", full)
    one.save(2, range(2, 52))
    assert one.hear() == [KVSaved(session=2, pages=0)]
    one.load(1, range(202, 302))
    assert one.hear() == [KVLoaded(session=1, pages=100)]
    one.save(1, [2], first=100)
    one.load(1, [202])
    assert one.hear(2) == [KVSaved(session=1, pages=0), KVLoaded(session=1, pages=0)]
    assert files_in(tmp_path) == []
    assert one.effects.stats()["failed_writes"] == 2


def test_a_folder_that_cannot_be_used_is_an_error_at_once(tmp_path: Path) -> None:
    """Before any thread is there. Without a disk's budget it is not even looked at."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OSError, match="file"):
        Bench(Watched(), disk_bytes=PLENTY, directory=str(file))
    Bench(Watched(), disk_bytes=0, directory=str(file)).effects.close()


def test_closing_answers_what_was_asked_and_removes_the_files(bench: Make, tmp_path: Path) -> None:
    one = bench(host_bytes=0, disk_bytes=PLENTY, directory=str(tmp_path))
    one.save(1, [3])
    one.hear()
    assert len(files_in(tmp_path)) == 1
    one.runner.go_on.clear()
    one.runner.held.clear()
    one.save(2, range(2, 102))
    assert one.runner.held.wait(60)
    one.load(1, [7])
    closing = threading.Thread(target=one.effects.close)
    closing.start()
    while not one.effects._closing:
        closing.join(0.001)
    one.runner.go_on.set()
    closing.join(60)
    assert not closing.is_alive()
    assert one.hear(2) == [KVSaved(session=2, pages=0), KVLoaded(session=1, pages=0)]
    assert list(tmp_path.iterdir()) == []
    one.effects.close()
