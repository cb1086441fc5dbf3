"""GGUF metadata -> Hugging Face `config.json` (as a dict)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from actors.model.errors import ModelUnusable
from actors.model.gguf_file import GgufFile

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "mistral": ("LlamaForCausalLM", "llama"),  # the same computation; llama.cpp writes Mistral as llama, too
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}

# Llama 3.1 and later: the constants that their `rope_freqs` tensor was computed with.
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_ORIGINAL = 1.0, 4.0, 8192


def model_config(file: GgufFile) -> dict[str, Any]:
    """The config of the model in `file`. Raises ModelUnusable for what we cannot compute."""
    if file.architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelUnusable(f"{file.path}: architecture {file.architecture!r} is not supported (supported: {known})")
    if file.get("{arch}.expert_count", int, 0) > 0:
        raise ModelUnusable(f"{file.path}: mixture-of-experts models are not supported")
    architecture, model_type = ARCHITECTURES[file.architecture]
    hidden = file.need("{arch}.embedding_length", int)
    heads = file.need("{arch}.attention.head_count", int)
    names = file.tensor_names()
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": file.need("{arch}.feed_forward_length", int),
        "num_hidden_layers": file.need("{arch}.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": file.get("{arch}.attention.head_count_kv", int, heads),
        "head_dim": file.get("{arch}.attention.key_length", int, hidden // heads),
        "max_position_embeddings": file.need("{arch}.context_length", int),
        "rms_norm_eps": _float32(file.need("{arch}.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": _float32(file.get("{arch}.rope.freq_base", float, 10000.0)),
        "vocab_size": _vocab_size(file),
        "tie_word_embeddings": "output.weight" not in names,
        "mlp_bias": _all_or_none(file, "ffn_gate", "ffn_up", "ffn_down"),
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id", int, -1),
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id", int, -1),
    }
    if model_type != "qwen2":  # Qwen2 has biases on Q, K and V, always, and no such setting
        config["attention_bias"] = _all_or_none(file, "attn_q", "attn_k", "attn_v", "attn_output")
    for key in ("bos_token_id", "eos_token_id"):
        if config[key] < 0:
            config[key] = None
    scaling = _rope_scaling(file, config)
    if scaling is not None:
        config["rope_scaling"] = scaling
    return config


def _all_or_none(file: GgufFile, *parts: str) -> bool:
    """Whether these projections have biases. A config can only say that all have or none has."""
    biased = {f"blk.0.{part}.bias" in file.tensor_names() for part in parts}
    if len(biased) > 1:
        raise ModelUnusable(f"{file.path}: some, but not all of {', '.join(parts)} have a bias")
    return biased.pop()


def _float32(value: float) -> float:
    """The short decimal that the stored float32 stands for (1e-05, not 9.999999747378752e-06)."""
    return float(str(np.float32(value)))


def _vocab_size(file: GgufFile) -> int:
    """Rows of the embedding: what the model can look up, which may be more than the tokenizer names."""
    for tensor in file.tensors():
        if tensor.name == "token_embd.weight":
            return int(tensor.shape[1])
    raise ModelUnusable(f"{file.path}: the GGUF file has no tensor token_embd.weight")


def _rope_scaling(file: GgufFile, config: dict[str, Any]) -> dict[str, Any] | None:
    rotary = file.get("{arch}.rope.dimension_count", int, config["head_dim"])
    if rotary != config["head_dim"]:
        raise ModelUnusable(f"{file.path}: rotary embedding of {rotary} of {config['head_dim']} dimensions")
    for tensor in file.tensors():
        if tensor.name == "rope_freqs.weight":
            factors = np.array(tensor.data, dtype=np.float32)
            return _llama3_scaling(file, factors, config["head_dim"], config["rope_theta"])
    kind = file.get("{arch}.rope.scaling.type", str, "none")
    factor = file.get("{arch}.rope.scaling.factor", float, file.get("{arch}.rope.scale_linear", float, 1.0))
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = file.need("{arch}.rope.scaling.original_context_length", int)
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise ModelUnusable(f"{file.path}: rope scaling {kind!r} is not supported")


def _llama3_scaling(file: GgufFile, factors: np.ndarray, head_dim: int, theta: float) -> dict[str, Any]:
    """Find the parameters behind a `rope_freqs` tensor (float32 [head_dim / 2], divisors of the frequencies)."""
    scaling = {
        "rope_type": "llama3",
        "factor": round(float(factors.max()), 4),
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_ORIGINAL,
    }
    expected = _llama3_factors(scaling["factor"], head_dim, theta)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise ModelUnusable(f"{file.path}: rope_freqs.weight is not a Llama 3 scaling")
    return scaling


def _llama3_factors(factor: Any, head_dim: int, theta: float) -> np.ndarray:
    """float32 [head_dim / 2]: 1 for short wavelengths, `factor` for long ones, a blend between."""
    factors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (index / head_dim)
        if wavelength < _LLAMA3_ORIGINAL / _LLAMA3_HIGH:
            factors.append(1.0)
        elif wavelength > _LLAMA3_ORIGINAL / _LLAMA3_LOW:
            factors.append(float(factor))
        else:
            smooth = (_LLAMA3_ORIGINAL / wavelength - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)
