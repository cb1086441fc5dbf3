"""From a model's files to the fused operator."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from actors.model.errors import ModelUnusable
from actors.model.weights import Weights
from actors.runner.cpu.packed_cache import PackedCache
from actors.runner.cpu.shape import shape_of
from actors.runner.torch.gpu_memory import weight_bytes
from actors.runner.torch.memory import available_bytes
from actors.runner.torch.rope import frequencies
from actors.runner.torch.setup import ModelSetup
from actors.runner.torch.shards import shard_of
from kernels.cpu.decoder import FusedDecoder, LayerTensors
from kernels.cpu.library import Library
from kernels.cpu.memory import Arena, Memory
from kernels.cpu.packed import PackedWeights


def packed_bytes(setup: ModelSetup) -> int:
    """What the weights take, about. All of it is to stay in memory, be it the process's own or, mapped from a file,
    that of all workers: each step reads every weight."""
    embedding = setup.card.vocab_size * setup.card.hidden_size
    numbers = weight_bytes(setup.card, shard_of(setup.card), setup.dtype) // setup.dtype.itemsize - embedding
    numbers += setup.card.tied_embeddings * embedding  # The head is packed, and the embedding is not.
    return embedding * setup.dtype.itemsize + numbers * (1 if setup.quantization else setup.dtype.itemsize)


def load_decoder(setup: ModelSetup, library: Library, threads: int, cache: PackedCache | None = None) -> FusedDecoder:
    """With weights from the cache, if one is given. Raises ModelUnusable if a tensor is missing, misshapen or left
    over, or if there is no memory: asking for more than there is gets processes killed, no error."""
    check_memory(setup)
    try:
        decoder = FusedDecoder(library, shape_of(setup))
    except RuntimeError as error:
        raise ModelUnusable(f"{_no_memory(setup)}; lower engine.kv_tokens") from error
    packed = None
    if cache is not None:
        packed = cache.get(setup, library, partial(pack, setup, library), packed_bytes(setup))
    decoder.open_packed(packed or pack(setup, library, Arena()), threads)
    return decoder


def check_memory(setup: ModelSetup) -> None:
    """Raises ModelUnusable. What another worker was promised a moment ago, and has not filled yet, is not seen."""
    cache, packed, free = setup.num_pages * setup.page_bytes, packed_bytes(setup), available_bytes()
    if free is not None and cache + packed > free:
        beside = f"beside weights of {packed / 2**30:.1f} GiB"
        text = f"{_no_memory(setup)} {beside}: {free / 2**30:.1f} GiB are free; lower engine.kv_tokens"
        raise ModelUnusable(text)


def _no_memory(setup: ModelSetup) -> str:
    size = setup.num_pages * setup.page_bytes / 2**30
    return f"no memory for a KV cache of {setup.num_pages * setup.page_size} tokens ({size:.1f} GiB)"


def pack(setup: ModelSetup, library: Library, memory: Memory) -> PackedWeights:
    """Every tensor of the model, in `memory`. Raises ModelUnusable, and what `memory` raises."""
    card = setup.card
    packing = FusedDecoder(library, shape_of(setup, num_pages=1), memory, setup.quantization)
    with Weights(setup.folder, setup.dtype) as weights:
        embedding = weights.take("model.embed_tokens.weight", (card.vocab_size, card.hidden_size))
        for index in range(card.num_layers):
            packing.add_layer(_layer(setup, weights, f"model.layers.{index}."))
        norm = weights.take("model.norm.weight", (card.hidden_size,))
        head = embedding
        if not card.tied_embeddings or weights.has("lm_head.weight"):
            head = weights.take("lm_head.weight", (card.vocab_size, card.hidden_size))
        weights.finish()
        return packing.pack(embedding, head, norm, frequencies(card.rope, card.head_dim)[0])


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
