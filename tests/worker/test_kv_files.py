"""Files with KV: what is read is exactly what was written, or nothing."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.worker.kv_files import HEADER_BYTES, Damaged, KVFile, KVFiles
from actors.worker.kv_folder import KVFolder, file_name

DATA = bytes(range(256)) * 40


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[KVFolder]:
    made = KVFolder(str(tmp_path))
    yield made
    made.close()


@pytest.fixture
def files(folder: KVFolder) -> KVFiles:
    return KVFiles(folder, "format a")


def path_of(folder: KVFolder, file: KVFile) -> Path:
    return folder.path / file_name(file.number)


def names(folder: KVFolder) -> list[str]:
    return sorted(set(os.listdir(folder.path)) - {"lock"})


def test_what_was_written_is_read(files: KVFiles, folder: KVFolder) -> None:
    """K7. Only the user can read it on the disk."""
    written = [files.write(data) for data in (DATA, b"", b"x")]
    assert [files.read(file) for file in written] == [DATA, b"", b"x"]
    for file in written:
        path = path_of(folder, file)
        assert path.stat().st_size == file.stored_bytes
        assert path.stat().st_mode & 0o777 == 0o600
    assert folder.path.stat().st_mode & 0o777 == 0o700
    files.delete(written[0])
    files.delete(written[0])
    assert len(names(folder)) == 2
    with pytest.raises(Damaged, match="cannot be opened"):
        files.read(written[0])


@pytest.mark.parametrize("at", [*range(0, HEADER_BYTES, 5), HEADER_BYTES, HEADER_BYTES + 5000, -1])
def test_one_bit_that_flipped_is_seen(files: KVFiles, folder: KVFolder, at: int) -> None:
    """K7: in the header and in the data."""
    file = files.write(DATA)
    path = path_of(folder, file)
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(Damaged, match=r"not (the one|what)"):
        files.read(file)


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + len(DATA) - 1])
def test_a_file_that_is_cut_off_is_seen(files: KVFiles, folder: KVFolder, size: int) -> None:
    """K7: torn while it was written, or afterwards."""
    file = files.write(DATA)
    os.truncate(path_of(folder, file), size)
    with pytest.raises(Damaged, match=f"it has {size} bytes"):
        files.read(file)


def test_a_longer_file_is_seen(files: KVFiles, folder: KVFolder) -> None:
    file = files.write(DATA)
    with path_of(folder, file).open("ab") as stream:
        stream.write(b"!")
    with pytest.raises(Damaged, match="bytes"):
        files.read(file)


def test_files_that_changed_places_are_seen(files: KVFiles, folder: KVFolder) -> None:
    """K7: also where both are whole and hold the same."""
    one, other = files.write(DATA), files.write(DATA)
    spare = folder.path / "spare"
    path_of(folder, one).rename(spare)
    path_of(folder, other).rename(path_of(folder, one))
    spare.rename(path_of(folder, other))
    for file in (one, other):
        with pytest.raises(Damaged, match="header"):
            files.read(file)
    spare.unlink(missing_ok=True)


@pytest.mark.parametrize("kv_format", ["format a", "format b"])
def test_another_workers_file_is_seen(files: KVFiles, folder: KVFolder, tmp_path: Path, kv_format: str) -> None:
    """K7: of the same number and with the same data, of this model or of another."""
    elsewhere = KVFolder(str(tmp_path / "elsewhere"))
    others = KVFiles(elsewhere, kv_format)
    theirs, ours = others.write(DATA), files.write(DATA)
    assert theirs == ours
    path_of(folder, ours).write_bytes(path_of(elsewhere, theirs).read_bytes())
    with pytest.raises(Damaged, match="header"):
        files.read(ours)
    others.close()


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_is_no_file_is_seen_and_does_not_block(files: KVFiles, folder: KVFolder, kind: str) -> None:
    file = files.write(DATA)
    path = path_of(folder, file)
    moved = path.rename(folder.path / "moved")
    make: dict[str, Callable[[], object]] = {
        "folder": path.mkdir,
        "link": lambda: path.symlink_to(moved),
        "pipe": lambda: os.mkfifo(path),
    }
    make[kind]()
    with pytest.raises(Damaged):
        files.read(file)
    if kind == "folder":
        path.rmdir()
    else:
        path.unlink()
    moved.unlink()


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_disk_that_is_full_leaves_nothing(folder: KVFolder, after: int) -> None:
    """K7: whichever write it is that fails."""
    writes = 0

    def write(fd: int, data: memoryview) -> int:
        nonlocal writes
        writes += 1
        if writes > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(fd, data[: len(data) // 2 or 1])

    files = KVFiles(folder, "format a", write)
    with pytest.raises(OSError, match="No space left"):
        files.write(DATA)
    assert names(folder) == []


def test_a_write_the_system_cuts_off_leaves_nothing(folder: KVFolder) -> None:
    """K7: the real thing: files of this process may not get larger than this one is, half-way through."""
    files = KVFiles(folder, "format a")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
        with pytest.raises(OSError, match="File too large"):
            files.write(DATA)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert names(folder) == []
    assert files.read(files.write(DATA)) == DATA


def test_writes_of_a_few_bytes_each_add_up(folder: KVFolder) -> None:
    files = KVFiles(folder, "format a", lambda fd, data: os.write(fd, data[:1000]))
    assert files.read(files.write(DATA)) == DATA
