"""A model's shape, read from its `config.json`: what the decoder has to build, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actors.model.errors import ModelUnusable

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Hugging Face's class names → families that our decoder covers (SmolLM and SmolLM2 are Llama)."""

_ROPE_NEEDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
"""Kinds of rope → numbers that config.json must give for them."""

_QWEN3_HEAD_DIM = 128
"""What Qwen3 means by a config.json without `head_dim`."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: base frequency, and how it is stretched for long contexts.

    `kind`: default, linear, dynamic, llama3 or yarn; `parameters`: what that kind takes, as config.json has it.
    """

    theta: float
    kind: str = "default"
    parameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A Llama-family decoder. Sizes are numbers of elements."""

    family: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    norm_eps: float
    rope: Rope
    max_context: int
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_ids: frozenset[int]

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> ModelCard:
        """Raises ModelUnusable for what our decoder does not cover, with the reason."""
        path = Path(folder) / "config.json"
        config = _read_json(path)
        generation = Path(folder) / "generation_config.json"
        extra = _read_json(generation) if generation.is_file() else {}
        try:
            return _card(config, _ids(extra.get("eos_token_id")) or _ids(config.get("eos_token_id")))
        except KeyError as error:
            raise ModelUnusable(f"{path} lacks {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise ModelUnusable(f"{path} holds something else than expected: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelUnusable(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelUnusable(f"{path} is not a JSON object")
    return value


def _card(config: dict[str, Any], eos_ids: frozenset[int]) -> ModelCard:
    family = _family(config)
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    max_context = int(config["max_position_embeddings"])
    _refuse_what_is_not_built(config)
    _refuse_window(config, family, max_context)
    bias = bool(config.get("attention_bias", False)) and family in ("llama", "qwen3")
    return ModelCard(
        family=family,
        hidden_size=hidden,
        num_layers=int(config["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=_num_kv_heads(config, family, heads),
        head_dim=int(config.get("head_dim") or (_QWEN3_HEAD_DIM if family == "qwen3" else hidden // heads)),
        intermediate_size=int(config["intermediate_size"]),
        vocab_size=int(config["vocab_size"]),
        norm_eps=float(config["rms_norm_eps"]),
        rope=_rope(config, max_context),
        max_context=max_context,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)) and family == "llama",
        qk_norm=family == "qwen3",
        eos_ids=eos_ids,
    )


def _family(config: dict[str, Any]) -> str:
    names = config.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    known = ", ".join(ARCHITECTURES)
    raise ModelUnusable(f"architecture {', '.join(names) or 'unknown'} is not supported; supported: {known}")


def _num_kv_heads(config: dict[str, Any], family: str, heads: int) -> int:
    """Only Llama's config may leave it out (it is `num_attention_heads` then, as in models older than GQA)."""
    given = config.get("num_key_value_heads") if family == "llama" else config["num_key_value_heads"]
    return int(given or heads)


def _refuse_what_is_not_built(config: dict[str, Any]) -> None:
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelUnusable(f"activation {config['hidden_act']!r} is not supported; only silu is")
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "of some kind")
        raise ModelUnusable(f"quantised weights ({method}) are not supported in safetensors; use a GGUF file")


def _refuse_window(config: dict[str, Any], family: str, max_context: int) -> None:
    window = config.get("sliding_window")
    used = config.get("use_sliding_window", family == "mistral")
    if family != "mistral" and config.get("max_window_layers", 0) >= config["num_hidden_layers"]:
        used = False  # Qwen's windows begin above that layer.
    if used and window is not None and window < max_context:
        raise ModelUnusable(
            f"sliding-window attention ({window} of {max_context} tokens) is not supported; "
            f"serve it with a context of at most {window} by editing max_position_embeddings"
        )


def _rope(config: dict[str, Any], max_context: int) -> Rope:
    """Both spellings: `rope_theta` + `rope_scaling` of old, and `rope_parameters` of transformers 5."""
    parameters: dict[str, Any] = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if any(isinstance(value, dict) for value in parameters.values()):
        raise ModelUnusable("rope parameters that differ between layers are not supported")
    theta = float(parameters.pop("rope_theta", None) or config.get("rope_theta") or 10000.0)
    old_name = parameters.pop("type", None)
    kind = str(parameters.pop("rope_type", None) or old_name or "default")
    if kind not in _ROPE_NEEDS:
        raise ModelUnusable(f"rope scaling {kind!r} is not supported; supported: {', '.join(_ROPE_NEEDS)}")
    partial = parameters.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise ModelUnusable(f"rotating only a part of each head ({partial}) is not supported")
    numbers = {key: float(value) for key, value in parameters.items() if isinstance(value, (int, float))}
    original = config.get("original_max_position_embeddings")
    if original is not None:
        numbers["original_max_position_embeddings"] = float(original)
    numbers.setdefault("original_max_position_embeddings", float(max_context))
    missing = [name for name in _ROPE_NEEDS[kind] if name not in numbers]
    if missing:
        raise ModelUnusable(f"rope scaling {kind!r} lacks {', '.join(missing)}")
    return Rope(theta, kind, numbers)


def _ids(value: Any) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(item for item in values if isinstance(item, int))
