"""A worker's private folder for files with KV, and what a predecessor that crashed has left beside it.

Workers of one machine may share the folder above. Each has a subfolder with a lock file, which it keeps locked (flock)
as long as it lives, however it dies. Whoever gets hold of another's lock may remove that subfolder.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger("remora.worker")

_FOLDER = re.compile(r"remora-kv-[0-9a-f]{16}")
_FILE = re.compile(r"[0-9a-f]{16}\.kv")
_LOCK = "lock"
_ATTEMPTS = 20
_READ_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_LOCK = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def file_name(number: int) -> str:
    """The name of the worker's file of that number: never anything that comes from outside."""
    return f"{number:016x}.kv"


class KVFolder:
    """The worker's own subfolder, mode 0700, open as `fd` until `close`, which removes it.

    `parent`: where it is; empty = the system's temporary folder. It is made if missing. Raises OSError if that, or a
    subfolder, cannot be made there.
    """

    def __init__(self, parent: str = "") -> None:
        self._parent = Path(parent or tempfile.gettempdir())
        self._parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_dead(self._parent)
        self.path, self.fd, self._lock = _make(self._parent)

    def close(self) -> None:
        """Once nobody reads or writes there any more. What cannot be removed is left to the next worker."""
        try:
            _empty(self.fd)
            _remove(self.path, self.fd)
        except OSError as error:
            logger.error("%s cannot be removed: %s", self.path, error)
        finally:
            os.close(self.fd)
            os.close(self._lock)


def remove_dead(parent: Path) -> None:
    """Remove the subfolders of this user's workers that have died. Of what cannot be removed the log tells."""
    with os.scandir(parent) as entries:
        names = sorted(entry.name for entry in entries if _FOLDER.fullmatch(entry.name))
    for name in names:
        _look_at(parent / name)


def _look_at(path: Path) -> None:
    try:
        if _remove_if_dead(path):
            logger.warning("removed %s, which a worker that died has left", path)
    except FileNotFoundError:
        logger.info("another worker has removed %s", path)
    except OSError as error:
        logger.warning("%s is left as it is: %s", path, error)


def _make(parent: Path) -> tuple[Path, int, int]:
    """(path, its descriptor, the lock's). Until it is locked another worker may take the new subfolder for a dead one's
    and remove it: then once more."""
    for _ in range(_ATTEMPTS):
        path = parent / f"remora-kv-{secrets.token_hex(8)}"
        path.mkdir(mode=0o700)
        with contextlib.ExitStack() as undo:
            try:
                fd = os.open(path, _READ_FOLDER)
                undo.callback(os.close, fd)
                lock = os.open(_LOCK, _OPEN_LOCK | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=fd)
                undo.callback(os.close, lock)
                if _locked(lock) and os.path.samestat(os.stat(path / _LOCK), os.fstat(lock)):
                    undo.pop_all()
                    return path, fd, lock
            except FileNotFoundError:
                continue
    raise FileExistsError(f"{parent}: every new folder for KV is removed by somebody")


def _remove_if_dead(path: Path) -> bool:
    with _opened(path, _READ_FOLDER) as fd:
        if os.fstat(fd).st_uid != os.geteuid():
            return False
        try:
            lock = os.open(_LOCK, _OPEN_LOCK, dir_fd=fd)
        except FileNotFoundError:
            # Its maker has died right then, or is about to make the lock, finds the folder gone, and makes another.
            os.rmdir(path)
            return True
        try:
            if not stat.S_ISREG(os.fstat(lock).st_mode) or not _locked(lock):
                return False
            _empty(fd)
            return _remove(path, fd)
        finally:
            os.close(lock)


def _empty(fd: int) -> None:
    """Remove our own files, and nothing else that somebody may have put there."""
    for name in os.listdir(fd):
        if _FILE.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)


def _remove(path: Path, fd: int) -> bool:
    """Remove lock and folder; not if there is anything else in it."""
    if set(os.listdir(fd)) - {_LOCK}:
        logger.warning("%s holds files that are not ours; it is left as it is", path)
        return False
    os.unlink(_LOCK, dir_fd=fd)
    os.rmdir(path)
    return True


def _locked(fd: int) -> bool:
    """Take the lock, if nobody has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)
