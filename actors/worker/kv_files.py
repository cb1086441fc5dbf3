"""Pieces of hibernated KV as files: written once, read only if they are exactly what was written.

A file is a header of 76 bytes and data. What its header must be is remembered, so neither an older file, nor another
worker's, nor another of our own can pass for it; the checksum tells data that has changed.

    magic 8 │ version 2, unused 2 │ kv_format's digest 16 │ worker's identity 16 │ number 8 │ size 8
    │ CRC-32 of the data 4 │ first 12 bytes of a digest of all that
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import stat
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from actors.worker.kv_folder import KVFolder, file_name

logger = logging.getLogger("remora.worker")

_MAGIC = b"REMORAKV"
_VERSION = 1
_FIELDS = struct.Struct(">8sHxx16s16sQQI")
_SEAL_BYTES = 12
HEADER_BYTES = _FIELDS.size + _SEAL_BYTES
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Damaged(Exception):
    """A file is not what was written: missing, too short, changed, or another one."""


@dataclass(frozen=True, slots=True)
class KVFile:
    """What is known of a file that was written: `size` in bytes of its data."""

    number: int
    size: int
    checksum: int

    @property
    def stored_bytes(self) -> int:
        return HEADER_BYTES + self.size


class KVFiles:
    """Called from one thread. `kv_format`: what the data means, as `RunnerInfo` has it.

    `write`: os.write, or what stands for it where a disk that is full is wanted.
    """

    def __init__(self, folder: KVFolder, kv_format: str, write: Callable[[int, memoryview], int] = os.write) -> None:
        self._folder = folder
        self._format = hashlib.blake2b(kv_format.encode(), digest_size=16).digest()
        self._identity = secrets.token_bytes(16)
        self._os_write = write
        self._last = 0

    def write(self, data: bytes) -> KVFile:
        """Raises OSError (a full disk, for one); then nothing of the file is left."""
        self._last += 1
        file = KVFile(self._last, len(data), zlib.crc32(data))
        name = file_name(file.number)
        try:
            fd = os.open(name, _WRITE, 0o600, dir_fd=self._folder.fd)
            try:
                for part in (self._header(file), data):
                    self._write_all(fd, part)
            finally:
                os.close(fd)
        except BaseException:
            self._unlink(name)
            raise
        return file

    def read(self, file: KVFile) -> bytes:
        """The data, as it was given to `write`. Raises Damaged."""
        try:
            fd = os.open(file_name(file.number), _READ, dir_fd=self._folder.fd)
        except OSError as error:
            raise Damaged(f"it cannot be opened: {error.strerror}") from error
        try:
            with open(fd, "rb", buffering=0) as raw:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode) or found.st_size != file.stored_bytes:
                    raise Damaged(f"it has {found.st_size} bytes, not {file.stored_bytes}")
                header, data = raw.read(HEADER_BYTES), _read_all(raw.read, file.size)
        except OSError as error:
            raise Damaged(f"it cannot be read: {error.strerror}") from error
        if header != self._header(file):
            raise Damaged("its header is not the one that was written")
        if len(data) != file.size or zlib.crc32(data) != file.checksum:
            raise Damaged("its data is not what was written")
        return data

    def delete(self, file: KVFile) -> None:
        self._unlink(file_name(file.number))

    def close(self) -> None:
        """Remove everything."""
        self._folder.close()

    def _unlink(self, name: str) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._folder.fd)
        except OSError as error:
            logger.error("%s cannot be removed: %s", self._folder.path / name, error)

    def _write_all(self, fd: int, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._os_write(fd, left) :]

    def _header(self, file: KVFile) -> bytes:
        fields = _FIELDS.pack(_MAGIC, _VERSION, self._format, self._identity, file.number, file.size, file.checksum)
        return fields + hashlib.blake2b(fields, digest_size=_SEAL_BYTES).digest()


def _read_all(read: Callable[[int], bytes | None], size: int) -> bytes:
    """One read may give less than asked for: at most 2 GiB, on Linux."""
    first = read(size) or b""
    if len(first) == size:
        return first
    parts = [first]
    while parts[-1] and sum(map(len, parts)) < size:
        parts.append(read(size - sum(map(len, parts))) or b"")
    return b"".join(parts)
