"""A `.gguf` file -> a Hugging Face folder: config.json, model.safetensors (bf16), tokenizer and chat template."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from actors.model.gguf_config import model_config
from actors.model.gguf_file import GgufFile
from actors.model.gguf_tokenizer import check_loads, read_vocab, tokenizer_config, tokenizer_json
from actors.model.gguf_weights import write_weights

FORMAT_VERSION = 1
"""Part of the cache key: raise it when the same GGUF file would now be converted differently."""


def convert(path: Path, out: Path, *, progress: bool = True) -> None:
    """Convert `path` into the existing, empty folder `out`. Raises ModelUnusable; `out` is then incomplete.

    The small files come first, so that an unsupported model is refused before its weights are read.
    """
    file = GgufFile(path)
    config = model_config(file)
    vocab = read_vocab(file)
    encoded = json.dumps(tokenizer_json(file, vocab), ensure_ascii=False)
    check_loads(file, encoded)
    (out / "tokenizer.json").write_text(encoded, encoding="utf-8")
    _write_json(out / "config.json", config)
    _write_json(out / "tokenizer_config.json", tokenizer_config(file, vocab))
    _write_json(out / "generation_config.json", _generation_config(file, config))
    template = file.get("tokenizer.chat_template", str, "")
    if template:
        (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    total = sum(int(tensor.n_bytes) for tensor in file.tensors())
    with tqdm(
        total=total, unit="B", unit_scale=True, desc=f"converting {path.name}", disable=not progress, file=sys.stderr
    ) as bar:
        write_weights(file, config, out / "model.safetensors", bar.update)


def _generation_config(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """`eos_token_id` lists every token that llama.cpp would end a reply at by metadata."""
    keys = ("eos", "eot", "eom")
    ids = [file.get(f"tokenizer.ggml.{key}_token_id", int, -1) for key in keys]
    eos = sorted({token_id for token_id in ids if token_id >= 0})
    return {"bos_token_id": config["bos_token_id"], "eos_token_id": eos}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
