"""A small model of the same kind as another: what a runner is tried on without the weights of the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from actors.model.card import ModelCard

HIDDEN, INNER, VOCAB, LAYERS = 256, 512, 512, 2


def write_sample(of: Path, to: Path, seed: int = 0) -> None:
    """Write `to`/config.json and weights: heads, norms, biases and positions as in the model at `of`, everything else
    small, all parameters random. Raises ModelUnusable for a model that is not covered."""
    card = ModelCard.read(of)
    config: dict[str, Any] = json.loads((of / "config.json").read_text(encoding="utf-8"))
    config |= {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "vocab_size": VOCAB,
        "num_hidden_layers": LAYERS,
        "head_dim": card.head_dim,
    }
    (to / "config.json").write_text(json.dumps(config), encoding="utf-8")
    small = ModelCard.read(to)
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: _random(name, shape, generator) for name, shape in tensor_shapes(small).items()}
    save_file(tensors, to / "model.safetensors")


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    numbers = torch.randn(shape, generator=generator)
    if len(shape) == 2:
        return numbers * shape[1] ** -0.5
    return numbers * 0.1 if name.endswith("bias") else 1.0 + numbers * 0.1


def tensor_shapes(card: ModelCard) -> dict[str, tuple[int, ...]]:
    """Every tensor that the decoder takes of such a model."""
    queries, keys = card.num_heads * card.head_dim, card.num_kv_heads * card.head_dim
    hidden, inner = card.hidden_size, card.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (card.vocab_size, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": () if card.tied_embeddings else (card.vocab_size, hidden),
    }
    rows = {
        "self_attn.q_proj": (queries, hidden, card.qkv_bias),
        "self_attn.k_proj": (keys, hidden, card.qkv_bias),
        "self_attn.v_proj": (keys, hidden, card.qkv_bias),
        "self_attn.o_proj": (hidden, queries, card.output_bias),
        "mlp.gate_proj": (inner, hidden, card.mlp_bias),
        "mlp.up_proj": (inner, hidden, card.mlp_bias),
        "mlp.down_proj": (hidden, inner, card.mlp_bias),
    }
    for layer in range(card.num_layers):
        at = f"model.layers.{layer}."
        for name, (out, into, bias) in rows.items():
            shapes[f"{at}{name}.weight"] = (out, into)
            shapes[f"{at}{name}.bias"] = (out,) if bias else ()
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}{name}.weight"] = (hidden,)
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            shapes[f"{at}{name}.weight"] = (card.head_dim,) if card.qk_norm else ()
    return {name: shape for name, shape in shapes.items() if shape}
