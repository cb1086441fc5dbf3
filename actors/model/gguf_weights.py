"""GGUF tensors -> one bf16 `model.safetensors`, tensor by tensor, so that no more than a slice is held in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np

from actors.model.errors import ModelUnusable
from actors.model.gguf_file import GgufFile

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"^blk\.(\d+)\.([a-z_]+)\.(weight|bias)$")
_NOT_WEIGHTS = {"rope_freqs.weight"}  # goes into config.json
_SLICE_BYTES = 32 * 2**20


def write_weights(file: GgufFile, config: dict[str, Any], out: Path, advance: Callable[[int], None]) -> None:
    """Write all weights of `file` to `out`. `advance` is called with the GGUF bytes done. Raises ModelUnusable."""
    tensors = [(tensor, hf_name(file, tensor.name)) for tensor in file.tensors() if tensor.name not in _NOT_WEIGHTS]
    with out.open("wb") as stream:
        _write_header(stream, tensors)
        for tensor, _ in tensors:
            for rows in _dequantised(file, tensor, _row_order(tensor.name, config, file.architecture)):
                stream.write(to_bf16(rows).tobytes())
            advance(int(tensor.n_bytes))


def hf_name(file: GgufFile, name: str) -> str:
    """The Hugging Face name of a GGUF tensor of the Llama family."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match = _LAYER.match(name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise ModelUnusable(f"{file.path}: unknown tensor {name!r} for architecture {file.architecture!r}")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def _write_header(stream: BinaryIO, tensors: list[tuple[gguf.ReaderTensor, str]]) -> None:
    """The safetensors header: its length as 8 bytes, then JSON, padded so that the data are aligned."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor, name in tensors:
        shape = [int(size) for size in reversed(tensor.shape)]  # GGUF names the fastest dimension first
        end = offset + 2 * int(tensor.n_elements)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    stream.write(len(encoded).to_bytes(8, "little"))
    stream.write(encoded)


def _row_order(name: str, config: dict[str, Any], architecture: str) -> np.ndarray | None:
    """int64 [rows]: which GGUF row is row i of the Hugging Face matrix; None where the order is the same.

    llama.cpp pairs rotary dimensions (2j, 2j + 1), Hugging Face (j, j + head_dim / 2); for `llama` models its
    converter reorders the rows of Q and K within each head, which this undoes. Other models use our order.
    """
    match = _LAYER.match(name)
    if architecture not in ("llama", "mistral") or match is None or match[2] not in ("attn_q", "attn_k"):
        return None
    heads = config["num_attention_heads"] if match[2] == "attn_q" else config["num_key_value_heads"]
    stored = np.arange(heads * config["head_dim"])
    return stored.reshape(heads, config["head_dim"] // 2, 2).swapaxes(1, 2).reshape(-1)


def _dequantised(file: GgufFile, tensor: gguf.ReaderTensor, order: np.ndarray | None) -> Iterator[np.ndarray]:
    """float32 rows of a tensor in Hugging Face order, a slice of bounded size at a time."""
    data = tensor.data if tensor.data.ndim > 1 else tensor.data.reshape(1, -1)
    try:
        if tensor.data.ndim == 1:
            values = gguf.dequantize(data, tensor.tensor_type).reshape(-1)
            yield values if order is None else values[order]
            return
        step = max(1, _SLICE_BYTES // (4 * int(tensor.shape[0])))
        for start in range(0, data.shape[0], step):
            rows = data[start : start + step] if order is None else data[order[start : start + step]]
            yield gguf.dequantize(rows, tensor.tensor_type)
    except NotImplementedError as error:
        raise ModelUnusable(f"{file.path}: tensor {tensor.name}: {error}") from error


def to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 of any shape -> the bits of bfloat16 as uint16, rounded to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, (bits >> 16) | 0x40, rounded).astype("<u2")
