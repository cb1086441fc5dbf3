"""Images of KV outside the cache: budgets, who gives way, and that nothing comes back but what was put in."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.worker.kv_files import HEADER_BYTES, KVFiles
from actors.worker.kv_folder import KVFolder
from actors.worker.kv_images import KVImages

PAGE = 10
PIECE = 4


class Disk:
    """A folder, and a disk that can be full."""

    def __init__(self, parent: Path) -> None:
        self.folder = KVFolder(str(parent))
        self.full = False
        self.files = KVFiles(self.folder, "test", self._write)

    def _write(self, fd: int, data: memoryview) -> int:
        if self.full:
            os.write(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(fd, data)

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.folder.path) if name.endswith(".kv"))

    def bytes_used(self) -> int:
        return sum((self.folder.path / name).stat().st_size for name in self.names())

    def damage(self, name: str) -> None:
        path = self.folder.path / name
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)


class Bench:
    """Images, what they should hold, and what was told of losses."""

    def __init__(self, disk: Disk, host_pages: float, disk_bytes: int) -> None:
        self.disk = disk
        self.lost: list[tuple[int, int]] = []
        self.images = KVImages(
            page_bytes=PAGE,
            piece_pages=PIECE,
            host_bytes=int(host_pages * PAGE),
            disk_bytes=disk_bytes,
            files=disk.files if disk_bytes else None,
            lost=lambda session, pages: self.lost.append((session, pages)),
        )

    def save(self, session: int, pages: list[int], first: int = 0) -> int:
        """As the effects do it. Page p of a session is `PAGE` bytes of p."""
        self.images.truncate(session, first)
        left = bytes(byte for page in pages for byte in [page % 256] * PAGE)
        while left:
            size = self.images.next_piece(session) * PAGE
            piece, left = left[:size], left[size:]
            if self.images.append(session, piece) * PAGE < len(piece):
                break
        return self.images.pages(session)

    def load(self, session: int, first: int, count: int) -> list[int]:
        data = b"".join(self.images.read(session, first, count))
        pages = [data[at : at + PAGE] for at in range(0, len(data), PAGE)]
        assert all(len(set(page)) == 1 and len(page) == PAGE for page in pages)
        return [page[0] for page in pages]

    @property
    def memory(self) -> tuple[int, int]:
        figures = self.images.figures
        assert figures.host_bytes == figures.host_pages * PAGE
        return figures.host_pages, figures.disk_pages


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.folder.close()
    assert list(tmp_path.iterdir()) == []


Make = Callable[..., Bench]


@pytest.fixture
def bench(disk: Disk) -> Iterator[Make]:
    made: list[Bench] = []

    def make(host_pages: float, disk_bytes: int = 0) -> Bench:
        made.append(Bench(disk, host_pages, disk_bytes))
        return made[-1]

    yield make
    for one in made:
        one.images.clear()
        assert one.memory == (0, 0)
        assert (one.images.figures.images, one.images.figures.disk_bytes) == (0, 0)
    assert disk.names() == []


PLENTY = 10_000


def test_what_is_saved_comes_back(bench: Make) -> None:
    """K7: whole or a part of it."""
    one = bench(100)
    assert one.save(7, list(range(11))) == 11
    for first in range(12):
        for count in range(13 - first):
            assert one.load(7, first, count) == list(range(first, min(11, first + count)))
    assert one.load(8, 0, 3) == []


@pytest.mark.parametrize("host_pages", [100, 0], ids=["memory", "files"])
def test_a_later_save_takes_the_place_of_what_was_there_from_its_first_page_on(bench: Make, host_pages: int) -> None:
    """K7, after a turn or a rollback: anywhere within a piece."""
    for first in range(11):
        one = bench(host_pages, PLENTY)
        one.save(1, list(range(10)))
        assert one.save(1, [50, 51, 52], first=first) == first + 3
        assert one.load(1, 0, 99) == [*range(first), 50, 51, 52]
        one.images.truncate(1, first)
        assert one.load(1, 0, 99) == list(range(first))
        one.images.clear()


@pytest.mark.parametrize("host_pages", [100, 0], ids=["memory", "files"])
def test_turn_by_turn_an_image_stays_in_few_pieces(bench: Make, disk: Disk, host_pages: int) -> None:
    """Many short turns make neither many files nor waste."""
    one = bench(host_pages, PLENTY)
    for page in range(20):
        one.save(1, [page], first=page)
    assert one.load(1, 0, 99) == list(range(20))
    assert len(list(one.images.read(1, 0, 99))) == 20 // PIECE
    assert len(disk.names()) == (0 if host_pages else 20 // PIECE)
    assert one.memory == ((20, 0) if host_pages else (0, 20))


def test_the_least_recently_used_moves_to_files_and_from_there_is_forgotten(bench: Make, disk: Disk) -> None:
    """K7: saving and loading count as use. What was forgotten is told."""
    one = bench(8, 3 * (4 * PAGE + HEADER_BYTES))
    for session in (1, 2):
        one.save(session, [session] * 4)
    one.load(1, 0, 1)
    one.save(3, [3] * 4)
    assert (one.memory, len(disk.names()), one.lost) == ((8, 4), 1, [])
    one.save(4, [4] * 4)
    one.save(5, [5] * 4)
    assert (one.memory, len(disk.names()), one.lost) == ((8, 12), 3, [])
    assert one.load(2, 0, 9) == [2] * 4  # From a file; it stays there.
    one.save(6, [6] * 4)
    assert (one.memory, one.lost) == ((8, 12), [(1, 0)])
    assert [one.load(session, 0, 9) for session in range(1, 7)] == [[], *([s] * 4 for s in range(2, 7))]
    assert one.images.figures.lost_pages == 4


def test_without_files_the_least_recently_used_is_forgotten_at_once(bench: Make) -> None:
    one = bench(8)
    for session in (1, 2, 3):
        one.save(session, [session] * 4)
    assert one.lost == [(1, 0)]
    assert [one.load(session, 0, 9) for session in (1, 2, 3)] == [[], [2] * 4, [3] * 4]


def test_loading_and_saving_count_as_use(bench: Make) -> None:
    one = bench(8)
    for session in (1, 2):
        one.save(session, [session] * 3)
    one.load(1, 0, 1)
    one.save(3, [3] * 3)
    assert one.lost == [(2, 0)]
    one.save(1, [5], first=3)
    one.save(4, [4] * 3)
    assert one.lost == [(2, 0), (3, 0)]


def test_without_memory_images_go_straight_to_files(bench: Make, disk: Disk) -> None:
    one = bench(0, PLENTY)
    assert one.save(1, list(range(6))) == 6
    assert one.memory == (0, 6)
    assert one.images.figures.disk_bytes == disk.bytes_used()


@pytest.mark.parametrize("host_pages", [0, 1, 3, 4, 6, 9])
@pytest.mark.parametrize("disk_pages", [0, 1, 3, 4, 7])
def test_of_an_image_larger_than_all_budgets_as_much_is_kept_as_fits(
    bench: Make, host_pages: int, disk_pages: int
) -> None:
    """K7: but for what pieces and headers of files leave unused."""
    one = bench(host_pages, disk_pages * PAGE + -(-disk_pages // PIECE) * HEADER_BYTES)
    one.save(9, [9, 9])
    kept = one.save(1, list(range(40)))
    assert max(host_pages, disk_pages // PIECE * PIECE) <= kept <= host_pages + disk_pages
    if host_pages >= PIECE or not host_pages:
        assert kept > host_pages + disk_pages - PIECE
    assert one.load(1, 0, 99) == list(range(kept))


def test_where_nothing_fits_nothing_is_kept(bench: Make) -> None:
    one = bench(0.9, HEADER_BYTES + PAGE - 1)
    assert one.save(1, [1, 2, 3]) == 0
    assert one.images.figures.images == 0


@pytest.mark.parametrize("piece", [0, 1, 2])
def test_an_image_ends_where_a_file_is_damaged(bench: Make, disk: Disk, piece: int) -> None:
    """K7: what comes before is good; what comes after is forgotten, and so is the file."""
    one = bench(0, PLENTY)
    one.save(1, list(range(12)))
    disk.damage(disk.names()[piece])
    assert one.load(1, 0, 99) == list(range(piece * PIECE))
    assert one.images.pages(1) == piece * PIECE
    assert len(disk.names()) == piece
    figures = one.images.figures
    assert (figures.failed_reads, figures.lost_pages, figures.disk_pages) == (1, 12 - piece * PIECE, piece * PIECE)
    assert one.lost == []  # Who asked is told by the answer.


def test_a_damaged_file_that_is_not_asked_for_does_no_harm(bench: Make, disk: Disk) -> None:
    one = bench(0, PLENTY)
    one.save(1, list(range(12)))
    disk.damage(disk.names()[0])
    disk.damage(disk.names()[2])
    assert one.load(1, 4, 4) == [4, 5, 6, 7]
    assert one.images.pages(1) == 12


def test_a_short_file_that_is_damaged_ends_the_image_when_it_is_to_be_joined(bench: Make, disk: Disk) -> None:
    """Whether the session is the one that saves, or another that gives way."""
    one = bench(0, PLENTY)
    one.save(1, list(range(6)))
    disk.damage(disk.names()[1])
    assert one.save(1, [6, 7, 8], first=6) == 4
    assert (one.load(1, 0, 9), one.lost) == ([0, 1, 2, 3], [])
    one = bench(4, PLENTY)
    one.save(1, list(range(6)))
    one.save(2, [2] * 4)
    assert one.memory == (4, 6)
    disk.damage(disk.names()[-1])
    one.save(1, [6], first=6)
    one.save(2, [2] * 4, first=4)
    assert (one.lost, one.load(1, 0, 9), one.load(2, 0, 9)) == ([(1, 4)], [0, 1, 2, 3], [2] * 8)


def test_nothing_is_added_after_a_gap(bench: Make, disk: Disk) -> None:
    """K7: an image that turns out damaged while room is made for more of it ends there: what comes would be taken for
    other pages than it is."""
    one = bench(1, PLENTY)
    one.save(1, [0, 1, 2, 3])
    for page in (4, 5):
        one.save(1, [page], first=page)
    assert (one.memory, len(disk.names())) == ((1, 5), 2)
    disk.damage(disk.names()[1])
    assert one.save(1, [6, 7, 8], first=6) == 4
    assert one.load(1, 0, 9) == [0, 1, 2, 3]


def test_a_full_disk_forgets_the_image_and_leaves_no_half_file(bench: Make, disk: Disk) -> None:
    """K7: whether it was the saving session's, or that of one that gives way. Afterwards things go on."""
    one = bench(4, PLENTY)
    one.save(1, [1] * 4)
    disk.full = True
    assert one.save(2, [2] * 4) == 4
    assert (one.lost, one.images.pages(1), disk.names()) == ([(1, 0)], 0, [])
    assert one.save(2, [2] * 4, first=4) == 0
    assert (one.images.pages(2), one.memory, disk.names(), one.lost) == (0, (0, 0), [], [(1, 0)])
    assert one.images.figures.failed_writes == 2
    disk.full = False
    assert one.save(2, [3] * 6) == 6
    assert one.load(2, 0, 9) == [3] * 6
    assert one.memory == (2, 4)


def test_a_dropped_image_takes_no_room(bench: Make, disk: Disk) -> None:
    one = bench(4, PLENTY)
    one.save(1, [1] * 6)
    one.save(2, [2] * 2)
    one.images.drop(1)
    one.images.drop(99)
    assert (one.memory, disk.names(), one.images.figures.images, one.lost) == ((2, 0), [], 1, [])


budgets = st.tuples(st.sampled_from([0, 1, 3, 5, 9, 20]), st.sampled_from([0, 60, 150, 300, 600, 2000]))
sessions = st.integers(1, 4)
steps = st.one_of(
    st.tuples(st.just("save"), sessions, st.integers(0, 12), st.integers(1, 11)),
    st.tuples(st.just("load"), sessions, st.integers(0, 12), st.integers(1, 11)),
    st.tuples(st.just("drop"), sessions),
    st.tuples(st.just("damage"), st.integers(0, 99)),
    st.tuples(st.just("full"), st.booleans()),
)


@settings(max_examples=100, deadline=None)
@given(budgets=budgets, script=st.lists(steps, max_size=40))
def test_whatever_happens_only_what_was_saved_comes_back(
    tmp_path_factory: pytest.TempPathFactory, budgets: tuple[int, int], script: list[tuple[object, ...]]
) -> None:
    """K7, against a dictionary: an image is a prefix of what was saved, its length is always known, budgets hold, the
    figures are true, and no file is there that no image needs."""
    disk = Disk(tmp_path_factory.mktemp("kv"))
    one = Bench(disk, budgets[0], budgets[1])
    saved: dict[int, list[int]] = {}
    told: dict[int, int] = {}
    fresh = 0
    for verb, *rest in script:
        if verb == "save":
            session, first, count = rest
            if first <= one.images.pages(session):
                pages = [(fresh := fresh + 1) % 256 for _ in range(count)]
                told[session] = one.save(session, pages, first)
                saved[session] = (saved.get(session, [])[:first] + pages)[: told[session]]
        elif verb == "load":
            session, first, count = rest
            expected = saved.get(session, [])[first : first + count]
            got = one.load(session, first, count)
            assert got == expected[: len(got)]
            if len(got) < len(expected):
                told[session] = first + len(got) if got else min(first, one.images.pages(session))
                saved[session] = saved[session][: told[session]]
        elif verb == "drop":
            one.images.drop(rest[0])
            told[rest[0]], saved[rest[0]] = 0, []
        elif verb == "damage" and disk.names():
            disk.damage(random.Random(rest[0]).choice(disk.names()))
        elif verb == "full":
            disk.full = rest[0]
        for session, pages in one.lost:
            told[session], saved[session] = pages, saved[session][:pages]
        one.lost.clear()
        for session in range(1, 5):
            assert one.images.pages(session) == told.get(session, 0)
        assert sum(one.memory) == sum(told.values())
        figures = one.images.figures
        assert figures.host_bytes <= budgets[0] * PAGE
        assert figures.disk_bytes == disk.bytes_used() <= budgets[1]
        assert figures.images == sum(1 for pages in told.values() if pages)
    one.images.clear()
    assert (one.memory, disk.names()) == ((0, 0), [])
    disk.folder.close()
