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
from actors.runner.torch.linear import Linear
from actors.runner.torch.rope import frequencies, rotate, rotation
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

    Takes every tensor of `weights`: raises ModelUnusable if one is missing, misshapen or left over.
    """

    def __init__(self, card: ModelCard, weights: Weights, device: torch.device) -> None:
        self.card = card
        self._device = device
        inverse, self._rope_factor = frequencies(card.rope, card.head_dim)
        self._inverse = inverse.to(device)
        self._embedding = weights.take("model.embed_tokens.weight", (card.vocab_size, card.hidden_size)).to(device)
        self._layers = [self._load_layer(index, weights) for index in range(card.num_layers)]
        self._norm = self._vector(weights, "model.norm.weight", card.hidden_size)
        self._head = Linear(self._output_embedding(weights), None)
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
        """Logits float32 [len(wanted), vocab_size].

        tokens, positions: int64 [num_tokens]; wanted: int64, the rows of the step whose logits are needed.
        kv: [num_layers, 2, num_pages, page_size, num_kv_heads, head_dim], written in place.
        """
        hidden = F.embedding(tokens, self._embedding)
        cos, sin = rotation(positions, self._inverse, self._rope_factor, hidden.dtype)
        for index, layer in enumerate(self._layers):
            normed = self._rms_norm(hidden, layer.input_norm)
            hidden = hidden + self._attend(normed, layer, cos, sin, attention, batch, kv[index])
            normed = self._rms_norm(hidden, layer.post_norm)
            gate, up = layer.gate_up(normed).chunk(2, dim=-1)
            hidden = hidden + layer.down(F.silu(gate) * up)
        return self._head(self._rms_norm(hidden.index_select(0, wanted), self._norm)).float()

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
        card = self.card
        heads = layer.qkv(x).view(x.shape[0], card.num_heads + 2 * card.num_kv_heads, card.head_dim)
        q, k, v = heads.split((card.num_heads, card.num_kv_heads, card.num_kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._rms_norm(q, layer.q_norm), self._rms_norm(k, layer.k_norm)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        attention.write_kv(k, v, kv[0], kv[1], batch)
        out = attention.forward(q, kv[0], kv[1], batch)
        return layer.o(out.view(x.shape[0], card.num_heads * card.head_dim))

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """In float32, rounded before the weight is applied: as Hugging Face does it."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.card.norm_eps)
        return weight * scaled.to(x.dtype)

    # -- loading ---------------------------------------------------------------------------------------------------

    def _load_layer(self, index: int, weights: Weights) -> Layer:
        card, at = self.card, f"model.layers.{index}."
        q_size, kv_size = card.num_heads * card.head_dim, card.num_kv_heads * card.head_dim
        sizes = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        mlp = dict.fromkeys(("gate_proj", "up_proj"), card.intermediate_size)
        return Layer(
            input_norm=self._vector(weights, at + "input_layernorm.weight", card.hidden_size),
            qkv=self._fused(weights, at + "self_attn.", sizes, card.qkv_bias),
            o=self._linear(weights, at + "self_attn.o_proj", card.hidden_size, q_size, card.output_bias),
            post_norm=self._vector(weights, at + "post_attention_layernorm.weight", card.hidden_size),
            gate_up=self._fused(weights, at + "mlp.", mlp, card.mlp_bias),
            down=self._linear(weights, at + "mlp.down_proj", card.hidden_size, card.intermediate_size, card.mlp_bias),
            q_norm=self._vector(weights, at + "self_attn.q_norm.weight", card.head_dim) if card.qk_norm else None,
            k_norm=self._vector(weights, at + "self_attn.k_norm.weight", card.head_dim) if card.qk_norm else None,
        )

    def _output_embedding(self, weights: Weights) -> Tensor:
        """The input embedding where they are tied, unless the file brings one that differs: then config.json is wrong
        (Hugging Face takes the file's word too)."""
        if self.card.tied_embeddings and not weights.has("lm_head.weight"):
            return self._embedding
        head = weights.take("lm_head.weight", (self.card.vocab_size, self.card.hidden_size)).to(self._device)
        if self.card.tied_embeddings and torch.equal(head, self._embedding):
            return self._embedding
        return head

    def _vector(self, weights: Weights, name: str, size: int) -> Tensor:
        return weights.take(name, (size,)).to(self._device)

    def _linear(self, weights: Weights, name: str, rows: int, columns: int, bias: bool) -> Linear:
        weight = weights.take(name + ".weight", (rows, columns)).to(self._device)
        return Linear(weight, self._vector(weights, name + ".bias", rows) if bias else None)

    def _fused(self, weights: Weights, at: str, sizes: dict[str, int], bias: bool) -> Linear:
        """Projections of the same input, stacked into one."""
        columns = self.card.hidden_size
        stacked = torch.cat([weights.take(f"{at}{name}.weight", (size, columns)) for name, size in sizes.items()])
        biases = [weights.take(f"{at}{name}.bias", (size,)) for name, size in sizes.items()] if bias else []
        return Linear(stacked.to(self._device), torch.cat(biases).to(self._device) if bias else None)
