"""The cpu runner's weights, kept between starts: found, made once, made anew, or done without."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actors.model.source import ModelFolder
from actors.runner.cpu import packed_cache
from actors.runner.cpu.load import packed_bytes
from actors.runner.cpu.model import FusedModel, fused_library
from actors.runner.cpu.packed_cache import KEPT, SUFFIX, PackedCache
from actors.runner.torch.setup import ModelSetup
from actors.worker.build import packed_folder
from configs import load
from kernels.cpu import packed_file
from kernels.cpu.library import Library
from kernels.cpu.memory import Arena
from tests.kernels.cpu.builds import unusable

Saved = Callable[[str], tuple[Path, Any]]


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    if why := unusable("float32"):
        pytest.skip(why)


@pytest.fixture
def model_folder(saved: Saved, tmp_path: Path) -> Path:
    """One's own, to be changed."""
    return Path(shutil.copytree(saved("wide-untied")[0], tmp_path / "model"))


def opened(model_folder: Path, cache: Path | None, quantization: str = "") -> FusedModel:
    setup = ModelSetup.of(model_folder, dtype="float32", kv_tokens=256, quantization=quantization)
    library = fused_library(setup)
    assert isinstance(library, Library)
    return FusedModel(setup, library, 2, None if cache is None else PackedCache(cache))


def logits(model: FusedModel) -> torch.Tensor:
    tokens = torch.tensor([5, 17, 3, 9])
    return model.decoder.step(tokens, [4], [4], torch.tensor([[4]]), torch.arange(4))


def is_mapped(model: FusedModel) -> bool:
    return not isinstance(model.decoder._packed.owner, Arena)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def test_the_second_start_finds_what_the_first_packed(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And computes the same, bit for bit, as weights that are packed in memory."""
    cache = tmp_path / "packed"
    expected = logits(opened(model_folder, None))
    first = opened(model_folder, cache)
    (path,) = files(cache)
    monkeypatch.setattr(packed_cache, "PackedWriter", None)
    second = opened(model_folder, cache)
    for model in (first, second):
        assert is_mapped(model)
        assert torch.equal(logits(model), expected)
    assert str(path) in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_int8_weights_have_a_file_of_their_own(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are not quantised again when they are mapped: bit for bit what is packed in memory."""
    if why := unusable("float32", "int8"):
        pytest.skip(why)
    cache = tmp_path / "packed"
    plain = logits(opened(model_folder, cache))
    expected = logits(opened(model_folder, None, "int8"))
    opened(model_folder, cache, "int8")
    assert len(files(cache)) == 2
    monkeypatch.setattr(packed_cache, "PackedWriter", None)
    again = opened(model_folder, cache, "int8")
    assert is_mapped(again)
    assert torch.equal(logits(again), expected)
    assert not torch.equal(expected, plain)
    assert torch.equal(logits(opened(model_folder, cache)), plain)


def change_one_number(model_folder: Path) -> None:
    path = model_folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    tensors["model.layers.1.mlp.down_proj.weight"][7, 3] += 1.0
    save_file(tensors, path)


def touch_config(model_folder: Path) -> None:
    path = model_folder / "config.json"
    card = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**card, "rms_norm_eps": 0.5}), encoding="utf-8")


@pytest.mark.parametrize("change", [change_one_number, touch_config])
def test_other_weights_of_the_same_name_are_packed_anew(
    model_folder: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    cache = tmp_path / "packed"
    before = logits(opened(model_folder, cache))
    change(model_folder)
    after = logits(opened(model_folder, cache))
    assert not torch.equal(after, before)
    assert torch.equal(after, logits(opened(model_folder, None)))
    assert len(files(cache)) == 2


def test_a_change_that_no_sample_shows_is_seen_by_the_files_time(model_folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "packed"
    opened(model_folder, cache)
    state = (model_folder / "model.safetensors").stat()
    os.utime(model_folder / "model.safetensors", ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    opened(model_folder, cache)
    assert len(files(cache)) == 2


def test_a_file_that_is_spoilt_is_made_anew(
    model_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "packed"
    expected = logits(opened(model_folder, cache))
    (path,) = files(cache)
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:-100])
    model = opened(model_folder, cache)
    assert "is made anew" in caplog.text
    assert is_mapped(model)
    assert torch.equal(logits(model), expected)
    assert path.read_bytes() == whole


def test_without_a_place_to_write_it_serves_from_memory(
    model_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder's name is taken by a file: as good as read-only, to root too."""
    (tmp_path / "packed").write_text("")
    model = opened(model_folder, tmp_path / "packed")
    assert not is_mapped(model)
    assert torch.equal(logits(model), logits(opened(model_folder, None)))
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "in this process alone" in record.message


def test_what_is_there_serves_also_where_nothing_can_be_written(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "packed"
    opened(model_folder, cache)

    def read_only(*args: object, **kwargs: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", read_only)
    monkeypatch.setattr(packed_cache.fcntl, "flock", read_only)
    assert is_mapped(opened(model_folder, cache))


def test_a_disk_that_runs_full_is_no_reason_not_to_serve(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "packed"

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(packed_file.os, "pwrite", full)
        model = opened(model_folder, cache)
    assert "No space left" in caplog.text
    assert files(cache) == []
    assert torch.equal(logits(model), logits(opened(model_folder, None)))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(packed_cache.shutil, "disk_usage", lambda folder: usage._replace(free=usage.total // 25))
    assert not is_mapped(opened(model_folder, cache))
    assert "free" in caplog.text


def test_only_a_few_files_stay(model_folder: Path, tmp_path: Path) -> None:
    """A model whose weights change all the time fills no disk; what was used last stays."""
    cache = tmp_path / "packed"
    made: list[Path] = []
    for number in range(KEPT + 2):
        os.utime(model_folder / "model.safetensors", ns=(number, number))
        opened(model_folder, cache)
        (new,) = set(files(cache)) - set(made)
        made.append(new)
        for age, path in enumerate([path for path in made if path.exists()]):
            os.utime(path, ns=(age, age))
    assert set(files(cache)) == set(made[-KEPT:])
    locks = {path.name for path in cache.glob(".*.lock")}
    assert locks == {f".{path.name}.lock" for path in made[-KEPT:]}


def test_files_that_are_not_ours_stay(model_folder: Path, tmp_path: Path) -> None:
    """Neither are old ones of other names thrown away, nor is written through a link."""
    cache = tmp_path / "packed"
    cache.mkdir()
    theirs = [cache / f"data-{number}{SUFFIX}" for number in range(KEPT + 2)]
    for path in theirs:
        path.write_bytes(b"theirs")
        os.utime(path, (0, 0))
    opened(model_folder, cache)
    assert all(path.read_bytes() == b"theirs" for path in theirs)
    (ours,) = set(files(cache)) - set(theirs)
    ours.unlink()
    lock = cache / f".{ours.name}.lock"
    lock.unlink()
    lock.symlink_to(theirs[0])
    assert not is_mapped(opened(model_folder, cache))
    assert theirs[0].read_bytes() == b"theirs"


def test_what_decides_the_contents_is_part_of_their_name() -> None:
    """Another version of it may make other numbers of the same weights: rope's frequencies are among them."""
    names = {path.name for pattern in packed_cache._CODE for path in pattern.parent.glob(pattern.name)}
    assert {"rope.py", "weights.py", "card.py", "load.py", "packing.py", "quantise.py", "matmul.cpp"} <= names


@pytest.mark.parametrize("kind", ["wide-llama", "wide-untied"])
def test_what_the_weights_take_is_reckoned_right(saved: Saved, tmp_path: Path, kind: str) -> None:
    """A head that is tied to the embedding is packed beside it."""
    folder, _ = saved(kind)
    opened(folder, tmp_path / "packed")
    (path,) = files(tmp_path / "packed")
    setup = ModelSetup.of(folder, dtype="float32", kv_tokens=256)
    assert packed_bytes(setup) == pytest.approx(path.stat().st_size, rel=0.1)


def start(model_folder: str, cache: str, gate: Any, results: Any) -> None:
    gate.wait()
    model = opened(Path(model_folder), Path(cache))
    results.put((is_mapped(model), logits(model).tolist()))


def test_two_that_start_at_once_make_one_file(model_folder: Path, tmp_path: Path) -> None:
    """The one waits for the other; nothing is left of the temporary file."""
    cache = tmp_path / "packed"
    cache.mkdir()
    context = multiprocessing.get_context("spawn")
    gate, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=start, args=(str(model_folder), str(cache), gate, results)) for _ in range(2)]
    for process in processes:
        process.start()
    told = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    expected = logits(opened(model_folder, None)).tolist()
    assert told == [(True, expected), (True, expected)]
    assert len(files(cache)) == 1
    assert not list(cache.glob("*.tmp-*"))


def test_settings_say_where_they_are_kept(tmp_path: Path) -> None:
    def folder(**values: object) -> Path | None:
        return packed_folder(load(None, {f"model.{name}": value for name, value in values.items()}))

    assert folder(cache_dir=str(tmp_path)) == tmp_path / "packed"
    assert folder(packed_cache=str(tmp_path / "here")) == tmp_path / "here"
    assert folder(packed_cache="off") is None


@pytest.mark.model
def test_the_default_model_from_the_cache_computes_the_same(default_folder: ModelFolder, tmp_path: Path) -> None:
    """Bit for bit."""
    expected = logits(opened(default_folder.path, None))
    for _ in range(2):
        model = opened(default_folder.path, tmp_path / "packed")
        assert is_mapped(model)
        assert torch.equal(logits(model), expected)
        model.close()
