"""Packed weights in a file that every process of a machine maps: packed once, and in memory once.

A file is written beside its final name, synced, and renamed, so that one that has the name is whole; nothing changes it
afterwards. It begins with a header (`_Header`, what it is of, a digest of both and of the table), then come the tensors
as the operator reads them, then the table: the addresses that the operator is given, as offsets in the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
import os
import stat
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.library import Ends, Layer
from kernels.cpu.memory import ALIGNMENT, SLAB
from kernels.cpu.packed import PackedWeights, moved

MAGIC = b"RemoraPW"
VERSION = 1
HEADER_BYTES = 2**16
_DIGEST_BYTES = 32
_MADV_POPULATE_READ = 22


class UnusableFile(Exception):
    """Not what it should be. The message says in what."""


@dataclass(frozen=True, slots=True)
class _Header:
    """Little endian: magic, version, bytes of what it is of (it follows), bytes of the file, where its table begins."""

    magic: bytes
    version: int
    identity: int
    size: int
    table: int

    layout = struct.Struct("<8sIIQQ")

    def packed(self) -> bytes:
        return self.layout.pack(self.magic, self.version, self.identity, self.size, self.table)


class PackedWriter:
    """Implements `Memory` by a file that becomes `path` in `settled`; what was packed is then a mapping of it. A
    context manager, which leaves nothing behind of a file that was not settled.

    `identity`: what tells these weights from any others. Everything raises OSError for what the disk does not take.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self._path, self._identity = path, identity.encode()
        if _Header.layout.size + len(self._identity) + _DIGEST_BYTES > HEADER_BYTES:
            raise ValueError(f"an identity of {len(self._identity)} bytes is too long")
        number, name = tempfile.mkstemp(prefix=temporary_prefix(path), dir=path.parent)
        self._file, self._temporary = os.fdopen(number, "r+b", buffering=0), Path(name)
        # Whole slabs at once: the system then keeps them in large pages, if its files have any.
        self._bytes = bytearray(SLAB)
        self._slab = torch.frombuffer(self._bytes, dtype=torch.uint8)
        self._flushed, self._used = 0, HEADER_BYTES

    def __enter__(self) -> PackedWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)  # It has another name by now, if it was settled.

    def keep(self, tensor: Tensor) -> int:
        self._append(torch.zeros(-self._used % ALIGNMENT, dtype=torch.uint8))
        begin = self._used
        self._append(tensor.contiguous().view(-1).view(torch.uint8))
        return begin

    hold = keep

    def settled(self, packed: PackedWeights) -> PackedWeights:
        table = packed.table()
        begin = self.keep(torch.frombuffer(bytearray(table), dtype=torch.uint8))
        self._flush()
        size = self._used
        header = _Header(MAGIC, VERSION, len(self._identity), size, begin).packed() + self._identity
        _write(self._file.fileno(), header + _digest(header, table), 0)
        os.fchmod(self._file.fileno(), 0o644 & ~_umask())
        os.fsync(self._file.fileno())
        self._temporary.rename(self._path)
        _sync_folder(self._path.parent)
        try:
            return open_packed(self._path, self._identity.decode(), len(packed.layers), packed.embedding)
        except UnusableFile as error:
            raise OSError(f"{self._path} is not what was written there: {error}") from error

    def _append(self, data: Tensor) -> None:
        """uint8."""
        while len(data):
            at = self._used - self._flushed
            count = min(len(data), len(self._slab) - at)
            self._slab[at : at + count] = data[:count]
            self._used += count
            data = data[count:]
            if self._used - self._flushed == len(self._slab):
                self._flush()

    def _flush(self) -> None:
        count = self._used - self._flushed
        _write(self._file.fileno(), memoryview(self._bytes)[:count], self._flushed)
        self._flushed = self._used


def open_packed(path: Path, identity: str, layers: int, embedding: Tensor) -> PackedWeights:
    """What `PackedWriter` made there of these weights; `embedding` tells shape and dtype of its own, and may be on
    torch's device `meta`. All of it is in memory then. Raises UnusableFile, OSError."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_owner(os.fstat(number))
        header, table = _verified(number, identity, layers)
        memory = mmap.mmap(number, header.size, mmap.MAP_SHARED, mmap.PROT_READ)
    finally:
        os.close(number)
    with contextlib.suppress(OSError):  # The system has none for files: ordinary pages do.
        memory.madvise(mmap.MADV_HUGEPAGE)
    with contextlib.suppress(OSError):  # An older one: they come as they are touched.
        memory.madvise(_MADV_POPULATE_READ)
    whole = _bytes_of(memory)
    words = moved(table, whole.data_ptr())
    split = ctypes.sizeof(Layer) * layers
    ends = Ends.from_buffer_copy(words[split:])
    begin = Ends.from_buffer_copy(table[split:]).embedding
    size = embedding.numel() * embedding.element_size()
    return PackedWeights(
        layers=(Layer * layers).from_buffer_copy(words[:split]),
        ends=ends,
        embedding=whole[begin : begin + size].view(embedding.dtype).view(embedding.shape),
        owner=memory,
    )


def _check_owner(state: os.stat_result) -> None:
    """Raises UnusableFile for a file that another user could change: what is in it is not checked again."""
    if state.st_uid not in (0, os.geteuid()):
        raise UnusableFile(f"it belongs to user {state.st_uid}")
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnusableFile("others may write to it")


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _bytes_of(memory: mmap.mmap) -> Tensor:
    """uint8; whoever writes to it is ended by the system. Torch would warn of a buffer that says so. Keeps the
    mapping."""
    address = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    array = (ctypes.c_uint8 * len(memory)).from_address(address)
    array.mapping = memory  # type: ignore[attr-defined]
    return torch.frombuffer(array, dtype=torch.uint8)


def temporary_prefix(path: Path) -> str:
    """How the names of files begin that are to become `path`."""
    return f".{path.name}.tmp-"


def _verified(file: int, identity: str, layers: int) -> tuple[_Header, bytes]:
    """(header, table). Raises UnusableFile."""
    text = identity.encode()
    begin = os.pread(file, HEADER_BYTES, 0)
    told = _Header.layout.size + len(text)
    if len(begin) < HEADER_BYTES:
        raise UnusableFile("it is shorter than its header")
    header = _Header(*_Header.layout.unpack_from(begin))
    if header.magic != MAGIC:
        raise UnusableFile("it is something else")
    if header.version != VERSION:
        raise UnusableFile(f"it has version {header.version}, and this is {VERSION}")
    if header.identity != len(text) or begin[_Header.layout.size : told] != text:
        raise UnusableFile("it is of other weights, or for another build")
    size = os.fstat(file).st_size
    if header.size != size:
        raise UnusableFile(f"it has {size} bytes of {header.size}")
    length = ctypes.sizeof(Layer) * layers + ctypes.sizeof(Ends)
    table = os.pread(file, length + 1, header.table)
    if len(table) != length:
        raise UnusableFile(f"its table has not {length} bytes")
    if begin[told : told + _DIGEST_BYTES] != _digest(begin[:told], table):
        raise UnusableFile("its header or its table was changed")
    return header, table


def _digest(header: bytes, table: bytes) -> bytes:
    return hashlib.blake2b(header + table, digest_size=_DIGEST_BYTES).digest()


def _write(file: int, data: bytes | memoryview, at: int) -> None:
    """All of it."""
    left = memoryview(data)
    while left:
        count = os.pwrite(file, left, at)
        left, at = left[count:], at + count


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
