"""Packed weights in a file: what comes back is what was written, or nothing."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.cpu.decoder import FusedDecoder
from kernels.cpu.library import Library, load
from kernels.cpu.packed import PackedWeights
from kernels.cpu.packed_file import HEADER_BYTES, PackedWriter, UnusableFile, open_packed
from tests.kernels.cpu.builds import unusable
from tests.kernels.cpu.rig import SHAPE, Model

IDENTITY = "these weights"


@pytest.fixture
def library() -> Library:
    if why := unusable("float32"):
        pytest.skip(why)
    found = load("float32")
    assert isinstance(found, Library)
    return found


def write(path: Path, library: Library, model: Model, identity: str = IDENTITY) -> PackedWeights:
    with PackedWriter(path, identity) as writer:
        packing = FusedDecoder(library, SHAPE, writer)
        for layer in model.layers:
            packing.add_layer(layer)
        return packing.pack(model.embedding, model.head, model.norm, model.inverse)


def read(path: Path, identity: str = IDENTITY) -> PackedWeights:
    embedding = torch.empty((SHAPE.vocab, SHAPE.hidden), dtype=torch.float32, device="meta")
    return open_packed(path, identity, SHAPE.layers, embedding)


def logits(decoder: FusedDecoder) -> torch.Tensor:
    tokens, table = torch.tensor([5, 17, 3, 150, 9]), torch.tensor([[4, 7]])
    return decoder.step(tokens, [5], [5], table, torch.arange(5))


def opened(library: Library, packed: PackedWeights) -> FusedDecoder:
    decoder = FusedDecoder(library, SHAPE)
    decoder.open_packed(packed, 2)
    return decoder


@pytest.mark.parametrize(("biases", "norms"), [(False, False), (True, True)])
def test_what_was_written_computes_as_what_was_packed(
    tmp_path: Path, library: Library, biases: bool, norms: bool
) -> None:
    """Bit for bit, by who wrote it and by who found it."""
    model = Model.random(SHAPE, torch.float32, biases=biases, norms=norms)
    path = tmp_path / "weights.packed"
    expected = logits(model.open(library))
    assert torch.equal(logits(opened(library, write(path, library, model))), expected)
    found = opened(library, read(path))
    assert torch.equal(logits(found), expected)
    assert torch.equal(found.embedding, model.embedding)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_tensors_longer_than_a_slab_come_back_whole(tmp_path: Path, library: Library) -> None:
    """Whatever is written at once and where its bounds fall."""
    model = Model.random(SHAPE, torch.float32)
    path = tmp_path / "weights.packed"
    large = torch.arange(40 * 2**20, dtype=torch.int32)
    with PackedWriter(path, IDENTITY) as writer:
        packing = FusedDecoder(library, SHAPE, writer)
        begins = [writer.keep(large[:7]), writer.keep(large), writer.keep(large[3:])]
        for layer in model.layers:
            packing.add_layer(layer)
        packing.pack(model.embedding, model.head, model.norm, model.inverse)
    data = path.read_bytes()
    for begin, tensor in zip(begins, (large[:7], large, large[3:]), strict=True):
        assert begin % 64 == 0
        assert data[begin : begin + 4 * len(tensor)] == tensor.numpy().tobytes()


def at(offset: int, change: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + change + data[offset + len(change) :]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda data: b"", "shorter"),
        (lambda data: data[:10], "shorter"),
        (lambda data: data[: HEADER_BYTES - 1], "shorter"),
        (lambda data: data[:HEADER_BYTES], r"bytes of \d+"),
        (lambda data: data[: len(data) // 2], r"bytes of \d+"),
        (lambda data: data[:-1], r"bytes of \d+"),
        (lambda data: data + b"\0", r"bytes of \d+"),
        (at(0, b"RIFF"), "something else"),
        (lambda data: b"\0" * len(data), "something else"),
        (at(8, struct.pack("<I", 2)), "version 2"),
        (at(12, struct.pack("<I", 7)), "other weights"),
        (at(32, b"those"), "other weights"),
        (at(24, struct.pack("<Q", HEADER_BYTES)), "table"),
        (at(24, struct.pack("<Q", 2**60)), "table"),
        (at(50, b"\1\2\3"), "was changed"),
        (lambda data: data[:-8] + b"\1" * 8, "was changed"),
    ],
)
def test_what_is_not_whole_is_not_used(
    tmp_path: Path, library: Library, spoil: Callable[[bytes], bytes], why: str
) -> None:
    """Truncated in any of its regions, foreign, of another version, or with a header or table that was flipped."""
    path = tmp_path / "weights.packed"
    write(path, library, Model.random(SHAPE, torch.float32))
    spoilt = tmp_path / "spoilt"
    spoilt.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(UnusableFile, match=why):
        read(spoilt)


def test_weights_of_another_name_or_size_are_not_used(tmp_path: Path, library: Library) -> None:
    path = tmp_path / "weights.packed"
    write(path, library, Model.random(SHAPE, torch.float32))
    with pytest.raises(UnusableFile, match="other weights"):
        read(path, "those weights")
    embedding = torch.empty((SHAPE.vocab, SHAPE.hidden), device="meta")
    with pytest.raises(UnusableFile, match="table"):
        open_packed(path, IDENTITY, SHAPE.layers + 1, embedding)


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full in the middle of it: what was there before is there still."""
    path = tmp_path / "weights.packed"
    path.write_bytes(b"before")

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        write(path, library, Model.random(SHAPE, torch.float32))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"before"


def test_a_file_that_is_replaced_or_removed_stays_for_who_has_it(tmp_path: Path, library: Library) -> None:
    path = tmp_path / "weights.packed"
    one, other = (Model.random(SHAPE, torch.float32, seed=seed) for seed in (1, 2))
    write(path, library, one)
    decoder = opened(library, read(path))
    write(path, library, other)
    assert torch.equal(logits(decoder), logits(one.open(library)))
    path.unlink()
    assert torch.equal(logits(decoder), logits(one.open(library)))


def test_files_that_others_may_change_are_not_used(tmp_path: Path, library: Library) -> None:
    """What is in them is not checked again; a link may lead to anything."""
    path = tmp_path / "x.packed"
    write(path, library, Model.random(SHAPE, torch.float32))
    path.chmod(0o664)
    with pytest.raises(UnusableFile, match="others may write"):
        read(path)
    path.chmod(0o644)
    (tmp_path / "link.packed").symlink_to(path)
    with pytest.raises(OSError, match=r"link\.packed"):
        read(tmp_path / "link.packed")
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        with pytest.raises(UnusableFile, match="65534"):
            read(path)


def test_a_file_is_as_private_as_its_maker_wants(tmp_path: Path, library: Library) -> None:
    before = os.umask(0o077)
    try:
        write(tmp_path / "x.packed", library, Model.random(SHAPE, torch.float32))
    finally:
        os.umask(before)
    assert (tmp_path / "x.packed").stat().st_mode & 0o777 == 0o600
