"""Where packed weights are kept between starts, and for all workers of a machine: found, made by one process while the
others wait, and thrown away when there are too many."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch

from actors.runner.cpu.shape import shape_of
from actors.runner.torch.setup import ModelSetup
from kernels.cpu.library import Library
from kernels.cpu.memory import Memory
from kernels.cpu.packed import PackedWeights
from kernels.cpu.packed_file import PackedWriter, UnusableFile, open_packed, temporary_prefix

logger = logging.getLogger("remora.worker")

SUFFIX = ".packed"
KEPT = 4
"""Files of a folder that stay: one that was not used for longer goes when another is made."""
SPARE = 0.05
"""Of a disk, that a new file has to leave free."""
_ROOT = Path(__file__).parents[3]
_CODE = (
    *(_ROOT / folder / pattern for folder in ("actors/runner/cpu", "kernels/cpu") for pattern in ("*.py", "native/*")),
    *(_ROOT / "actors" / name for name in ("model/card.py", "model/weights.py", "runner/torch/rope.py")),
)
_OURS = re.compile(rf"-[0-9a-f]{{16}}{re.escape(SUFFIX)}$")
Build = Callable[[Memory], PackedWeights]


class PackedCache:
    """`folder`: where the files are. What cannot be read or written there is no reason not to serve."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, setup: ModelSetup, library: Library, build: Build, size: int) -> PackedWeights | None:
        """Weights that are mapped, `build` having put them into the memory that it is given, of about `size` bytes, if
        they were not there. None where this cannot be done, which is logged: the caller has to do without."""
        identity = identity_of(setup, library)
        digest = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
        name = re.sub(r"[^A-Za-z0-9._-]", "_", setup.folder.resolve().name)
        path = self._folder / f"{name[:100]}-{digest}{SUFFIX}"
        try:
            return self._found(path, identity, setup) or self._made(path, identity, setup, build, size)
        except OSError as error:
            logger.warning("packed weights are not kept in %s, but in this process alone: %s", self._folder, error)
            return None

    def _found(self, path: Path, identity: str, setup: ModelSetup) -> PackedWeights | None:
        card = setup.card
        embedding = torch.empty((card.vocab_size, card.hidden_size), dtype=setup.dtype, device="meta")
        try:
            packed = open_packed(path, identity, card.num_layers, embedding)
        except FileNotFoundError:
            return None
        except UnusableFile as error:
            logger.warning("%s is made anew: %s", path, error)
            return None
        with contextlib.suppress(OSError):  # Its age only says which goes first.
            os.utime(path)
        return packed

    def _made(self, path: Path, identity: str, setup: ModelSetup, build: Build, size: int) -> PackedWeights:
        """Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_name(f".{path.name}.lock")):
            packed = self._found(path, identity, setup)  # Another process may have made it meanwhile.
            if packed is not None:
                return packed
            for left_behind in self._folder.glob(f"{temporary_prefix(path)}*"):  # By one that was killed.
                left_behind.unlink()
            _check_room(self._folder, size)
            begun = time.monotonic()
            with PackedWriter(path, identity) as writer:
                packed = build(writer)
            logger.info("packed weights into %s in %.1f s", path, time.monotonic() - begun)
        with contextlib.suppress(OSError):
            self._drop_old(path)
        return packed

    def _drop_old(self, newest: Path) -> None:
        """Those who have one mapped keep it until they end."""
        ours = [path for path in self._folder.glob(f"*{SUFFIX}") if _OURS.search(path.name)]
        others = sorted(ours, key=lambda path: path.stat().st_mtime, reverse=True)
        for path in [path for path in others if path != newest][KEPT - 1 :]:
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.lock").unlink(missing_ok=True)


def identity_of(setup: ModelSetup, library: Library) -> str:
    """What packed weights depend on: the model's files, the operator's build, and the code that packs. Raises OSError.

    The fingerprint alone reads samples: a file that was changed elsewhere has another time."""
    files = sorted(setup.folder.glob("*.safetensors"))
    return json.dumps(
        {
            "weights": setup.weights(),
            "files": hashlib.blake2b(repr([_state(path) for path in files]).encode(), digest_size=8).hexdigest(),
            "shape": repr(shape_of(setup, num_pages=1)),
            "variant": library.variant.name,
            "quantization": setup.quantization,
            "code": _code_digest(),
        }
    )


def _state(path: Path) -> tuple[str, int, int]:
    state = path.stat()
    return path.name, state.st_size, state.st_mtime_ns


@lru_cache(maxsize=1)
def _code_digest() -> str:
    digest = hashlib.blake2b(digest_size=8)
    for pattern in _CODE:
        for path in sorted(pattern.parent.glob(pattern.name)):
            digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _check_room(folder: Path, size: int) -> None:
    disk = shutil.disk_usage(folder)
    if disk.free - size < SPARE * disk.total:
        raise OSError(f"{size / 2**20:.0f} MiB would leave less than {SPARE:.0%} of the disk free")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Waits for whoever makes the same file; the system lets go of the lock of one that dies."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
