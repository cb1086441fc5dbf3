"""From a model's files to the fused operator."""

from __future__ import annotations

import torch
from torch import Tensor

from actors.model.errors import ModelUnusable
from actors.model.weights import Weights
from actors.runner.torch.gpu_memory import weight_bytes
from actors.runner.torch.memory import available_bytes
from actors.runner.torch.rope import frequencies
from actors.runner.torch.setup import ModelSetup
from actors.runner.torch.shards import shard_of
from kernels.cpu.decoder import DecoderShape, FusedDecoder, LayerTensors
from kernels.cpu.library import Library


def shape_of(setup: ModelSetup) -> DecoderShape:
    card = setup.card
    return DecoderShape(
        hidden=card.hidden_size,
        inner=card.intermediate_size,
        layers=card.num_layers,
        heads=card.num_heads,
        kv_heads=card.num_kv_heads,
        head_dim=card.head_dim,
        vocab=card.vocab_size,
        page_size=setup.page_size,
        num_pages=setup.num_pages,
        norm_eps=card.norm_eps,
        score_scale=card.head_dim**-0.5,
        rope_factor=frequencies(card.rope, card.head_dim)[1],
    )


def packed_bytes(setup: ModelSetup) -> int:
    """What the weights take, about. Torch leaves them in their file, which the system can drop and read again; packed,
    they are the process's own."""
    return weight_bytes(setup.card, shard_of(setup.card), setup.dtype)


def load_decoder(setup: ModelSetup, weights: Weights, library: Library, threads: int) -> FusedDecoder:
    """Takes every tensor of `weights`. Raises ModelUnusable if one is missing, misshapen or left over, or if there is
    no memory: asking for more than there is gets processes killed, no error."""
    card = setup.card
    cache = setup.num_pages * setup.page_bytes
    packed = packed_bytes(setup)
    free = available_bytes()
    text = f"no memory for a KV cache of {setup.num_pages * setup.page_size} tokens ({cache / 2**30:.1f} GiB)"
    if free is not None and cache + packed > free:
        beside = f"beside weights of {packed / 2**30:.1f} GiB"
        raise ModelUnusable(f"{text} {beside}: {free / 2**30:.1f} GiB are free; lower engine.kv_tokens")
    try:
        decoder = FusedDecoder(library, shape_of(setup))
    except RuntimeError as error:
        raise ModelUnusable(f"{text}; lower engine.kv_tokens") from error
    embedding = weights.take("model.embed_tokens.weight", (card.vocab_size, card.hidden_size))
    for index in range(card.num_layers):
        decoder.add_layer(_layer(setup, weights, f"model.layers.{index}."))
    norm = weights.take("model.norm.weight", (card.hidden_size,))
    head = embedding
    if not card.tied_embeddings or weights.has("lm_head.weight"):
        head = weights.take("lm_head.weight", (card.vocab_size, card.hidden_size))
    weights.finish()
    decoder.open(embedding, head, norm, frequencies(card.rope, card.head_dim)[0], threads)
    return decoder


def _layer(setup: ModelSetup, weights: Weights, at: str) -> LayerTensors:
    card = setup.card
    hidden, inner = card.hidden_size, card.intermediate_size
    queries, keys = card.num_heads * card.head_dim, card.num_kv_heads * card.head_dim
    heads = {"q_proj": queries, "k_proj": keys, "v_proj": keys}

    def weight(name: str, rows: int, columns: int) -> Tensor:
        return weights.take(f"{at}{name}.weight", (rows, columns))

    def vector(name: str, size: int, present: bool = True) -> Tensor | None:
        return weights.take(f"{at}{name}", (size,)) if present else None

    biases = [vector(f"self_attn.{name}.bias", rows, card.qkv_bias) for name, rows in heads.items()]
    input_norm = weights.take(f"{at}input_layernorm.weight", (hidden,))
    post_norm = weights.take(f"{at}post_attention_layernorm.weight", (hidden,))
    return LayerTensors(
        qkv=torch.cat([weight(f"self_attn.{name}", rows, hidden) for name, rows in heads.items()]),
        out=weight("self_attn.o_proj", hidden, queries),
        gate=weight("mlp.gate_proj", inner, hidden),
        up=weight("mlp.up_proj", inner, hidden),
        down=weight("mlp.down_proj", hidden, inner),
        input_norm=input_norm,
        post_norm=post_norm,
        qkv_bias=torch.cat([bias for bias in biases if bias is not None]) if card.qkv_bias else None,
        out_bias=vector("self_attn.o_proj.bias", hidden, card.output_bias),
        gate_bias=vector("mlp.gate_proj.bias", inner, card.mlp_bias),
        up_bias=vector("mlp.up_proj.bias", inner, card.mlp_bias),
        down_bias=vector("mlp.down_proj.bias", hidden, card.mlp_bias),
        q_norm=vector("self_attn.q_norm.weight", card.head_dim, card.qk_norm),
        k_norm=vector("self_attn.k_norm.weight", card.head_dim, card.qk_norm),
    )
