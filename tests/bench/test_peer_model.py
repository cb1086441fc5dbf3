"""The GGUF file that llama.cpp gets has the folder's own weights and tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers.pre_tokenizers import ByteLevel

from actors.model.gguf_convert import convert
from tests.bench.figures import BenchError
from tests.bench.peer_model import export_gguf
from tests.model.tiny_gguf import TinyGguf

MERGES = (("t", "h"), ("th", "e"), ("Ġ", "the"))
ADDED = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def tokenizer() -> dict[str, Any]:
    """All bytes, a few merges, and added tokens behind them."""
    pieces = [*sorted(ByteLevel.alphabet()), *("".join(merge) for merge in MERGES)]
    vocab = {piece: token_id for token_id, piece in enumerate(pieces)}
    added = [{"id": len(pieces) + at, "content": text, "special": at < 2} for at, text in enumerate(ADDED)]
    return {"model": {"vocab": vocab, "merges": [list(merge) for merge in MERGES]}, "added_tokens": added}


@pytest.fixture(params=[("llama", "smollm"), ("llama", "llama-bpe"), ("qwen2", "qwen2")], ids=str)
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A small model as `remora serve` keeps it."""
    architecture, pre = request.param
    source = TinyGguf(tokenizer(), architecture)
    source.pre = pre
    return converted(source.write(tmp_path / "source.gguf"), tmp_path / "folder")


def converted(file: Path, folder: Path) -> Path:
    folder.mkdir()
    convert(file, folder, progress=False)
    return folder


def test_it_comes_back_as_the_folder_it_was_made_of(folder: Path, tmp_path: Path) -> None:
    """Order of rotary dimensions, names, biases, kinds of tokens, merges, template: to the last bit."""
    back = converted(export_gguf(folder, tmp_path / "made" / "it.gguf"), tmp_path / "back")
    before, after = load_file(folder / "model.safetensors"), load_file(back / "model.safetensors")
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    for name in ("config.json", "tokenizer.json", "chat_template.jinja"):
        assert (folder / name).read_text(encoding="utf-8") == (back / name).read_text(encoding="utf-8")


def test_it_is_written_once(folder: Path, tmp_path: Path) -> None:
    out = export_gguf(folder, tmp_path / "it.gguf")
    written = out.stat().st_mtime_ns
    assert export_gguf(folder, out).stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.glob(".*")] == []


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"model_type": "mamba"}),
        ("config.json", {"rope_scaling": {"rope_type": "yarn"}}),
        ("tokenizer.json", {"pre_tokenizer": {"type": "Whitespace"}}),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    folder: Path, tmp_path: Path, file: str, change: dict[str, Any]
) -> None:
    tree = json.loads((folder / file).read_text(encoding="utf-8"))
    (folder / file).write_text(json.dumps({**tree, **change}), encoding="utf-8")
    with pytest.raises(BenchError):
        export_gguf(folder, tmp_path / "out" / "it.gguf")
    assert list((tmp_path / "out").iterdir()) == []
