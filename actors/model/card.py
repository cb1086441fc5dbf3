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
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelUnusable(f"{path} cannot be read: {error}") from error
        generation = Path(folder) / "generation_config.json"
        extra = json.loads(generation.read_text(encoding="utf-8")) if generation.is_file() else {}
        try:
            return _card(config, _ids(extra.get("eos_token_id")) or _ids(config.get("eos_token_id")))
        except KeyError as error:
            raise ModelUnusable(f"{path} lacks {error}") from error


def _card(config: dict[str, Any], eos_ids: frozenset[int]) -> ModelCard:
    family = _family(config)
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    max_context = int(config["max_position_embeddings"])
    _refuse_window(config, family, max_context)
    if config.get("hidden_act", "silu") != "silu":
        raise ModelUnusable(f"activation {config['hidden_act']!r} is not supported; only silu is")
    bias = bool(config.get("attention_bias", False))
    return ModelCard(
        family=family,
        hidden_size=hidden,
        num_layers=int(config["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        intermediate_size=int(config["intermediate_size"]),
        vocab_size=int(config["vocab_size"]),
        norm_eps=float(config["rms_norm_eps"]),
        rope=_rope(config, max_context),
        max_context=max_context,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias or family == "qwen2",
        output_bias=bias and family != "qwen2",
        mlp_bias=bool(config.get("mlp_bias", False)),
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


def _refuse_window(config: dict[str, Any], family: str, max_context: int) -> None:
    window = config.get("sliding_window")
    used = config.get("use_sliding_window", family == "mistral")
    if used and window is not None and window < max_context:
        raise ModelUnusable(
            f"sliding-window attention ({window} of {max_context} tokens) is not supported; "
            f"serve it with a context of at most {window} by editing max_position_embeddings"
        )


def _rope(config: dict[str, Any], max_context: int) -> Rope:
    """Both spellings: `rope_theta` + `rope_scaling` of old, and `rope_parameters` of transformers 5."""
    parameters: dict[str, Any] = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(parameters.pop("rope_theta", None) or config.get("rope_theta") or 10000.0)
    kind = str(parameters.pop("rope_type", None) or parameters.pop("type", None) or "default")
    parameters.pop("type", None)
    if kind not in ("default", "linear", "dynamic", "llama3", "yarn"):
        raise ModelUnusable(f"rope scaling {kind!r} is not supported")
    numbers = {key: float(value) for key, value in parameters.items() if isinstance(value, (int, float))}
    numbers.setdefault("original_max_position_embeddings", float(max_context))
    return Rope(theta, kind, numbers)


def _ids(value: Any) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(item for item in values if isinstance(item, int))
