"""A folder of prepared models that several processes may fill at the same time.

An entry is built in a temporary folder beside its final place and then renamed, so an entry that exists is complete.
A lock per entry lets one process build it while the others wait; the kernel drops the lock of a process that dies.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from actors.model.errors import ModelUnusable


def cache_root(cache_dir: str) -> Path:
    """`cache_dir`, or the user's cache folder for Remora when it is empty."""
    if cache_dir:
        return Path(cache_dir).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "remora"


def entry(root: Path, name: str, build: Callable[[Path], None], *, progress: bool = True) -> Path:
    """The folder of the entry `name`, built by `build(empty folder)` if it is not there yet.

    Whatever `build` raises is passed on, and leaves nothing behind. Raises ModelUnusable when the cache cannot be
    written.
    """
    final = _place(root, name)
    if final.is_dir():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _locked(final.parent / f".{final.name}.lock", progress=progress):
            if not final.is_dir():
                _build(final, build)
    except OSError as error:
        raise ModelUnusable(f"the model cache {root} cannot be written: {error}") from error
    return final


def has_entry(root: Path, name: str) -> bool:
    """Whether `entry` would find it ready."""
    return find_entry(root, name) is not None


def find_entry(root: Path, name: str) -> Path | None:
    """The folder of an entry that is ready; None if there is none."""
    place = _place(root, name)
    return place if place.is_dir() else None


def _place(root: Path, name: str) -> Path:
    return root / "models" / re.sub(r"[^A-Za-z0-9._-]", "_", name)


def _build(final: Path, build: Callable[[Path], None]) -> None:
    prefix = f".{final.name}.tmp-"
    for left_behind in final.parent.glob(f"{prefix}*"):  # by a process that was killed: we hold the lock
        shutil.rmtree(left_behind)
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
    try:
        build(temporary)
        temporary.chmod(0o755)
        temporary.rename(final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def _locked(path: Path, *, progress: bool) -> Iterator[None]:
    """Hold the lock file `path`, waiting for it if need be."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress:
                sys.stderr.write("another process is preparing this model; waiting for it\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
