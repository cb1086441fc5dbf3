"""A Llama-family decoder for inference: plain tensors, fused projections, paged KV.

RMSNorm → fused q,k,v → (q/k norm) → RoPE → paged attention → o, then RMSNorm → fused gate,up → SwiGLU → down.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.model.card import ModelCard
from actors.model.weights import Weights
from actors.runner.torch.group import ALONE, Peers
from actors.runner.torch.linear import Linear
from actors.runner.torch.rope import frequencies, rotate, rotation
from actors.runner.torch.shards import WHOLE, shard_of, times
from kernels.attention import AttentionBackend, AttnBatch


@dataclass(slots=True)
class Layer:
    """One layer's parameters. `q_norm`, `k_norm`: [head_dim], for models that have them."""

    input_norm: Tensor
    qkv: Linear
    o: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None


class Decoder:
    """`forward` computes one step over a ragged batch and returns logits of the rows that sample.

    Takes every tensor of `weights`: raises ModelUnusable if one is missing, misshapen or left over. With `peers` it
    has one part of each that is split (see `shards`), and they compute together.
    """

    def __init__(self, card: ModelCard, weights: Weights, device: torch.device, peers: Peers = ALONE) -> None:
        self.card = card
        self._peers = peers
        self._shard = shard_of(card, peers.rank, peers.size)
        self._device = device
        inverse, self._rope_factor = frequencies(card.rope, card.head_dim)
        self._inverse = inverse.to(device)
        self._embedding = weights.take("model.embed_tokens.weight", (card.vocab_size, card.hidden_size)).to(device)
        self._layers = [self._load_layer(index, weights) for index in range(card.num_layers)]
        self._norm = self._vector(weights, "model.norm.weight", card.hidden_size)
        self._head = Linear(self._head_weight(weights), None)
        weights.finish()

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        wanted: Tensor,
        attention: AttentionBackend,
        batch: AttnBatch,
        kv: Tensor,
    ) -> Tensor:
        """Logits float32 [len(wanted), vocab_size]; a part of them at any rank but the first.

        tokens, positions: int64 [num_tokens]; wanted: int64, the rows of the step whose logits are needed.
        kv: [num_layers, 2, num_pages, page_size, KV heads of this rank, head_dim], written in place.
        """
        peers = self._peers
        hidden = F.embedding(tokens, self._embedding)
        cos, sin = rotation(positions, self._inverse, self._rope_factor, hidden.dtype)
        for index, layer in enumerate(self._layers):
            normed = self._rms_norm(hidden, layer.input_norm)
            hidden = hidden + peers.add_up(self._attend(normed, layer, cos, sin, attention, batch, kv[index]))
            normed = self._rms_norm(hidden, layer.post_norm)
            gate, up = layer.gate_up(normed).chunk(2, dim=-1)
            hidden = hidden + peers.add_up(layer.down(F.silu(gate) * up))
        logits = self._head(self._rms_norm(hidden.index_select(0, wanted), self._norm))
        return peers.join_columns(logits, self.card.vocab_size).float()

    def _attend(
        self,
        x: Tensor,
        layer: Layer,
        cos: Tensor,
        sin: Tensor,
        attention: AttentionBackend,
        batch: AttnBatch,
        kv: Tensor,
    ) -> Tensor:
        num_heads, num_kv_heads, head_dim = self._shard.num_heads, self._shard.num_kv_heads, self.card.head_dim
        heads = layer.qkv(x).view(x.shape[0], num_heads + 2 * num_kv_heads, head_dim)
        q, k, v = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._rms_norm(q, layer.q_norm), self._rms_norm(k, layer.k_norm)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        attention.write_kv(k, v, kv[0], kv[1], batch)
        out = attention.forward(q, kv[0], kv[1], batch)
        return layer.o(out.view(x.shape[0], num_heads * head_dim))

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """In float32, rounded before the weight is applied: as Hugging Face does it."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.card.norm_eps)
        return weight * scaled.to(x.dtype)

    # -- loading ---------------------------------------------------------------------------------------------------

    def _load_layer(self, index: int, weights: Weights) -> Layer:
        card, shard, at = self.card, self._shard, f"model.layers.{index}."
        q_size, kv_size = card.num_heads * card.head_dim, card.num_kv_heads * card.head_dim
        queries, keys = times(shard.heads, card.head_dim), times(shard.kv_heads, card.head_dim)
        heads = {"q_proj": (q_size, queries), "k_proj": (kv_size, keys), "v_proj": (kv_size, keys)}
        inner = (card.intermediate_size, shard.mlp)
        return Layer(
            input_norm=self._vector(weights, at + "input_layernorm.weight", card.hidden_size),
            qkv=self._fused(weights, at + "self_attn.", heads, card.qkv_bias),
            o=self._summand(weights, at + "self_attn.o_proj", q_size, queries, card.output_bias),
            post_norm=self._vector(weights, at + "post_attention_layernorm.weight", card.hidden_size),
            gate_up=self._fused(weights, at + "mlp.", {"gate_proj": inner, "up_proj": inner}, card.mlp_bias),
            down=self._summand(weights, at + "mlp.down_proj", *inner, card.mlp_bias),
            q_norm=self._vector(weights, at + "self_attn.q_norm.weight", card.head_dim) if card.qk_norm else None,
            k_norm=self._vector(weights, at + "self_attn.k_norm.weight", card.head_dim) if card.qk_norm else None,
        )

    def _head_weight(self, weights: Weights) -> Tensor:
        """Our rows of the input embedding where they are tied, unless the file brings some that differ: then
        config.json is wrong (Hugging Face takes the file's word too)."""
        ours, tied = self._shard.vocab, self.card.tied_embeddings
        if tied and not weights.has("lm_head.weight"):
            return self._embedding[ours]
        head = weights.take("lm_head.weight", (self.card.vocab_size, self.card.hidden_size), ours).to(self._device)
        return self._embedding[ours] if tied and torch.equal(head, self._embedding[ours]) else head

    def _vector(self, weights: Weights, name: str, size: int, part: slice = WHOLE) -> Tensor:
        return weights.take(name, (size,), part).to(self._device)

    def _summand(self, weights: Weights, name: str, columns: int, part: slice, bias: bool) -> Linear:
        """Back to the hidden state, from a part of what goes in: a part of the sum. The bias is added once."""
        rows = self.card.hidden_size
        weight = weights.take(name + ".weight", (rows, columns), columns=part).to(self._device)
        added = self._vector(weights, name + ".bias", rows) if bias else None
        return Linear(weight, added if self._shard.rank == 0 else None)

    def _fused(self, weights: Weights, at: str, parts: dict[str, tuple[int, slice]], bias: bool) -> Linear:
        """Projections of the same input, stacked into one. `parts`: of how many rows each, and which are ours."""
        width = self.card.hidden_size
        stacked = torch.cat(
            [weights.take(f"{at}{name}.weight", (rows, width), ours) for name, (rows, ours) in parts.items()]
        )
        if not bias:
            return Linear(stacked.to(self._device), None)
        biases = [self._vector(weights, f"{at}{name}.bias", rows, ours) for name, (rows, ours) in parts.items()]
        return Linear(stacked.to(self._device), torch.cat(biases))
