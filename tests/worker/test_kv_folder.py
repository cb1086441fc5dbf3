"""A worker's private folder, and those that others have left: the living are never touched, the dead removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from actors.worker import kv_folder
from actors.worker.kv_folder import KVFolder, file_name, remove_dead

HOLDER = """
import sys
from actors.worker.kv_folder import KVFolder, file_name
folder = KVFolder(sys.argv[1])
(folder.path / file_name(1)).write_bytes(b"KV")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process that has a folder, with a file in it."""
    root = str(Path(kv_folder.__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    yield process
    process.kill()
    process.communicate()


def dead(parent: Path, name: str = "0123456789abcdef") -> Path:
    """What a worker that was killed leaves."""
    path = parent / f"remora-kv-{name}"
    path.mkdir(mode=0o700)
    (path / "lock").touch()
    for number in (1, 2):
        (path / file_name(number)).write_bytes(b"KV")
    return path


def test_a_folder_is_private_and_goes_with_its_worker(tmp_path: Path) -> None:
    parent = tmp_path / "new" / "folder"
    folder = KVFolder(str(parent))
    assert folder.path.parent == parent
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / file_name(1)).write_bytes(b"KV")
    folder.close()
    assert list(parent.iterdir()) == []


def test_without_a_setting_it_is_in_the_systems_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = KVFolder()
    assert folder.path.parent == tmp_path
    folder.close()


def test_workers_that_share_a_folder_leave_each_other_alone(tmp_path: Path) -> None:
    """K7: whoever starts while others live removes nothing of theirs, in this process or another."""
    folders = []
    for _ in range(4):
        folders.append(KVFolder(str(tmp_path)))
        (folders[-1].path / file_name(1)).write_bytes(b"KV")
    assert len({folder.path for folder in folders}) == 4
    assert all((folder.path / file_name(1)).read_bytes() == b"KV" for folder in folders)
    for folder in folders:
        folder.close()
    assert list(tmp_path.iterdir()) == []


def test_another_process_keeps_its_folder_until_it_is_killed(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """K7: what a worker leaves that was killed with -9, the next one removes."""
    assert holder.stdout is not None
    theirs = Path(holder.stdout.readline().strip())
    KVFolder(str(tmp_path)).close()
    assert (theirs / file_name(1)).read_bytes() == b"KV"
    holder.send_signal(signal.SIGKILL)
    holder.wait(60)
    ours = KVFolder(str(tmp_path))
    assert list(tmp_path.iterdir()) == [ours.path]
    ours.close()


def test_a_dead_workers_folder_is_removed(tmp_path: Path) -> None:
    dead(tmp_path)
    (tmp_path / "remora-kv-00000000000000ff").mkdir()  # It died before it had made its lock.
    remove_dead(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_else_is_ever_removed(tmp_path: Path) -> None:
    """K7: neither other names, nor what is in a dead worker's folder and not a worker's, nor what a link leads to."""
    outside = tmp_path / "outside"
    outside.mkdir()
    kept = [outside / "lock", outside / file_name(1)]
    parent = tmp_path / "parent"
    parent.mkdir()
    for name in (
        "remora-kv-",
        "remora-kv-0123456789abcdeg",
        "remora-kv-0123456789abcdef0",
        "my-remora-kv-0123456789abcdef",
    ):
        (parent / name).mkdir()
        kept += [parent / name / "lock", parent / name / file_name(1)]
    kept += [parent / "remora-kv-1111111111111111", dead(parent, "2" * 16) / "letter.txt"]
    for path in kept:
        path.write_bytes(b"dear")
    (parent / "remora-kv-3333333333333333").symlink_to(outside)
    linked = dead(parent, "4" * 16)
    (linked / "lock").unlink()
    (linked / "lock").symlink_to(outside / "lock")
    pipe = dead(parent, "5" * 16)
    (pipe / "lock").unlink()
    os.mkfifo(pipe / "lock")
    remove_dead(parent)
    assert all(path.read_bytes() == b"dear" for path in kept)
    assert not (parent / "remora-kv-2222222222222222" / file_name(1)).exists()
    assert (linked / file_name(1)).exists()
    assert (pipe / file_name(1)).exists()


def test_a_folder_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dead(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    remove_dead(tmp_path)
    assert len(list(path.iterdir())) == 3


@pytest.mark.parametrize("moment", ["before the lock", "before it is locked", "after it is locked"])
def test_a_new_folder_that_another_worker_takes_for_a_dead_ones_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """K7: two workers start at once: at each moment one of them may be looking."""
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            remove_dead(tmp_path)

    real_open, real_locked = os.open, kv_folder._locked

    def opening(path: object, flags: int, *rest: object, **fields: object) -> int:
        if moment == "before the lock" and path == "lock" and flags & os.O_CREAT:
            look()
        return real_open(path, flags, *rest, **fields)  # type: ignore[arg-type]

    def locked(fd: int) -> bool:
        if looks == 0 and moment == "before it is locked":
            look()
            return real_locked(fd)
        took = real_locked(fd)
        if moment == "after it is locked":
            look()
        return took

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(kv_folder, "_locked", locked)
    folder = KVFolder(str(tmp_path))
    assert looks
    assert list(tmp_path.iterdir()) == [folder.path]
    (folder.path / file_name(1)).write_bytes(b"KV")
    remove_dead(tmp_path)
    assert (folder.path / file_name(1)).exists()
    monkeypatch.undo()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """An explicit setting that cannot work is never replaced by another."""
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        KVFolder(str(tmp_path / "file"))


def test_a_folder_that_has_gone_meanwhile_does_not_keep_its_worker_from_ending(tmp_path: Path) -> None:
    folder = KVFolder(str(tmp_path))
    (folder.path / "lock").unlink()
    folder.path.rmdir()
    folder.close()
