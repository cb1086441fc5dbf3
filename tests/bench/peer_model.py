"""The model of a Hugging Face folder as a GGUF file in bf16, so that llama.cpp computes with the very same weights."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors import safe_open

from actors.model.pretokenizers import byte_level_split
from tests.bench.figures import BenchError

ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2}
PRE_TOKENIZERS = ("smollm", "qwen2", "llama-bpe", "gpt-2")
"""llama.cpp's names of them; the folder's own is recognised by what it does."""
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
SUFFIXES = (".weight", ".bias")


def export_gguf(folder: Path, out: Path) -> Path:
    """Write `out`, matrices in bf16 and vectors in float32, unless it is there. Raises BenchError for a model that this
    cannot write."""
    if out.is_file():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    config = _json(folder / "config.json")
    architecture = ARCHITECTURES.get(config["model_type"])
    if architecture is None or config.get("rope_scaling"):
        raise BenchError(f"{folder}: a {config['model_type']} model cannot be written as GGUF here")
    writer = gguf.GGUFWriter(unfinished, gguf.MODEL_ARCH_NAMES[architecture])
    try:
        _write_settings(writer, config)
        _write_tokenizer(writer, folder, config["vocab_size"])
        names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
        for name, values in _tensors(folder):
            stored = names.get_name(name, try_suffixes=SUFFIXES)
            if stored is None:
                raise BenchError(f"{folder}: llama.cpp knows no tensor {name}")
            kind = gguf.GGMLQuantizationType.BF16 if values.ndim == 2 else gguf.GGMLQuantizationType.F32
            ordered = _rotary_order(name, values, config) if architecture is gguf.MODEL_ARCH.LLAMA else values
            writer.add_tensor(stored, gguf.quantize(ordered, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)
    return out


def _write_settings(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads", heads))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for token_id, add in ((config["bos_token_id"], writer.add_bos_token_id), (_eos(config), writer.add_eos_token_id)):
        if token_id is not None:
            add(token_id)


def _eos(config: dict[str, Any]) -> int | None:
    eos = config["eos_token_id"]
    return eos[0] if isinstance(eos, list) else eos


def _write_tokenizer(writer: gguf.GGUFWriter, folder: Path, rows: int) -> None:
    """`rows`: of the embedding; those that no token has are padding. Raises BenchError for another kind than
    byte-level BPE."""
    spec = _json(folder / "tokenizer.json")
    known = [pre for pre in PRE_TOKENIZERS if byte_level_split(pre) == spec["pre_tokenizer"]]
    if spec["model"]["type"] != "BPE" or not known:
        raise BenchError(f"{folder}: llama.cpp has no name for its tokenizer, or it is not known here")
    added = {token["id"]: token for token in spec["added_tokens"]}
    named = {token_id: piece for piece, token_id in spec["model"]["vocab"].items()}
    named |= {token_id: token["content"] for token_id, token in added.items()}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(known[0])
    writer.add_token_list([named.get(token_id, f"[PAD{token_id}]") for token_id in range(rows)])
    writer.add_token_types([_kind(token_id, named, added) for token_id in range(rows)])
    merges = spec["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_add_bos_token(bool(_json(folder / "tokenizer_config.json").get("add_bos_token", False)))
    template = folder / "chat_template.jinja"
    if template.is_file():
        writer.add_chat_template(template.read_text(encoding="utf-8"))


def _kind(token_id: int, named: dict[int, str], added: dict[int, dict[str, Any]]) -> int:
    if token_id in added:
        return CONTROL if added[token_id]["special"] else USER_DEFINED
    return NORMAL if token_id in named else UNUSED


def _tensors(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """(Hugging Face name, float32 values): one at a time in memory, until the writer has them."""
    for shard in sorted(folder.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                yield name, file.get_tensor(name).to(torch.float32).numpy()


def _rotary_order(name: str, values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """llama.cpp pairs rotary dimensions (2j, 2j + 1) in Llama models, Hugging Face (j, j + head_dim / 2)."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    projection = name.split(".")[-2]
    if projection not in heads:
        return values
    rows = values.reshape(heads[projection], 2, -1, *values.shape[1:])
    return rows.swapaxes(1, 2).reshape(values.shape)


def _json(path: Path) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return tree
