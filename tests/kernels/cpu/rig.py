"""A random decoder, computed by the operator over pages and by plain float64 over whole sequences."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kernels.cpu.decoder import DecoderShape, FusedDecoder, LayerTensors
from kernels.cpu.library import Library
from kernels.cpu.quantise import quantise_rows, quantise_weight, rotate

PAGE = 16
SHAPE = DecoderShape(
    hidden=64,
    inner=112,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=64,
    vocab=203,
    page_size=PAGE,
    num_pages=64,
    norm_eps=1e-5,
    score_scale=64**-0.5,
)
CAPS = {torch.float32: 2e-5, torch.bfloat16: 3e-2}
"""Largest error of the logits, of their largest."""


@dataclass
class Model:
    """Random parameters, rounded to `dtype`."""

    shape: DecoderShape
    dtype: torch.dtype
    layers: list[LayerTensors]
    embedding: Tensor
    head: Tensor
    norm: Tensor
    inverse: Tensor

    @classmethod
    def random(
        cls, shape: DecoderShape, dtype: torch.dtype, *, biases: bool = False, norms: bool = False, seed: int = 0
    ) -> Model:
        generator = torch.Generator().manual_seed(seed)

        def draw(*size: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
            return (torch.randn(*size, generator=generator) * scale + mean).to(dtype)

        def weight(rows: int, columns: int) -> Tensor:
            return draw(rows, columns, scale=1.5 * columns**-0.5)

        def layer() -> LayerTensors:
            queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
            plain = LayerTensors(
                qkv=weight(queries + 2 * keys, shape.hidden),
                out=weight(shape.hidden, queries),
                gate=weight(shape.inner, shape.hidden),
                up=weight(shape.inner, shape.hidden),
                down=weight(shape.hidden, shape.inner),
                input_norm=draw(shape.hidden, scale=0.2, mean=1.0),
                post_norm=draw(shape.hidden, scale=0.2, mean=1.0),
            )
            if biases:
                plain = replace(
                    plain,
                    qkv_bias=draw(queries + 2 * keys, scale=0.3),
                    out_bias=draw(shape.hidden, scale=0.3),
                    gate_bias=draw(shape.inner, scale=0.3),
                    up_bias=draw(shape.inner, scale=0.3),
                    down_bias=draw(shape.hidden, scale=0.3),
                )
            if norms:
                per_head = {name: draw(shape.head_dim, scale=0.2, mean=1.0) for name in ("q_norm", "k_norm")}
                plain = replace(plain, **per_head)
            return plain

        return cls(
            shape=shape,
            dtype=dtype,
            layers=[layer() for _ in range(shape.layers)],
            embedding=draw(shape.vocab, shape.hidden),
            head=weight(shape.vocab, shape.hidden),
            norm=draw(shape.hidden, scale=0.2, mean=1.0),
            inverse=10000.0 ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim),
        )

    def open(self, library: Library, threads: int = 2, quantization: str = "") -> FusedDecoder:
        decoder = FusedDecoder(library, self.shape, quantization=quantization)
        for layer in self.layers:
            decoder.add_layer(layer)
        decoder.open(self.embedding, self.head, self.norm, self.inverse, threads)
        return decoder

    def reference(self, ids: Sequence[int], quantization: str = "") -> Tensor:
        """Logits float64 [len(ids), vocab]: no pages, no packing, no batch."""
        shape = self.shape
        linear = _quantised_linear if quantization else _plain_linear
        hidden = self.embedding.double()[torch.tensor(ids)]
        angles = torch.arange(len(ids)).double()[:, None, None] * self.inverse.double()
        cos, sin = angles.cos() * shape.rope_factor, angles.sin() * shape.rope_factor
        for layer in self.layers:
            x = self._norm(hidden, layer.input_norm)
            heads = linear(x, layer.qkv, layer.qkv_bias).view(len(ids), -1, shape.head_dim)
            q, k, v = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
            if layer.q_norm is not None and layer.k_norm is not None:
                q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
            k, v = (part.repeat_interleave(shape.heads // shape.kv_heads, dim=1) for part in (k, v))
            scores = torch.einsum("qhd,khd->hqk", q, k) * shape.score_scale
            future = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
            weights = scores.masked_fill(future, -torch.inf).softmax(-1)
            attended = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
            hidden = hidden + linear(attended, layer.out, layer.out_bias)
            x = self._norm(hidden, layer.post_norm)
            gate, up = linear(x, layer.gate, layer.gate_bias), linear(x, layer.up, layer.up_bias)
            hidden = hidden + linear(torch.nn.functional.silu(gate) * up, layer.down, layer.down_bias)
        return linear(self._norm(hidden, self.norm), self.head, None)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.shape.norm_eps) * weight.double()


@dataclass
class Running:
    """A sequence that is computed bit by bit, on pages of its own in random order."""

    ids: list[int]
    pages: list[int]
    done: int = 0


@dataclass
class Bench:
    """Sequences over one decoder. All of its cache is NaN at first."""

    model: Model
    library: Library
    threads: int = 2
    seed: int = 0
    quantization: str = ""
    decoder: FusedDecoder = field(init=False)
    free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.decoder = self.model.open(self.library, self.threads, self.quantization)
        self.decoder.kv.fill_(torch.nan)
        self.free = list(range(2, self.model.shape.num_pages))
        random.Random(self.seed).shuffle(self.free)

    def sequence(self, length: int, seed: int = 0) -> Running:
        ids = random.Random(seed * 1000 + length).choices(range(self.model.shape.vocab), k=length)
        size = self.model.shape.page_size
        return Running(ids, [self.free.pop() for _ in range(-(-length // size))])

    def step(self, *parts: tuple[Running, int], wanted: str = "all") -> list[Tensor]:
        """Compute the next `count` tokens of each; the logits of all of them, or of each one's last."""
        q_lens = [count for _, count in parts]
        kv_lens = [sequence.done + count for sequence, count in parts]
        tokens = [token for sequence, count in parts for token in sequence.ids[sequence.done : sequence.done + count]]
        table = torch.zeros(len(parts), max(len(sequence.pages) for sequence, _ in parts) + 1, dtype=torch.int64)
        for row, (sequence, _) in enumerate(parts):
            table[row, : len(sequence.pages)] = torch.tensor(sequence.pages)
        ends = torch.tensor(q_lens).cumsum(0)
        rows = torch.arange(len(tokens)) if wanted == "all" else ends - 1
        logits = self.decoder.step(torch.tensor(tokens), q_lens, kv_lens, table, rows)
        for sequence, count in parts:
            sequence.done += count
        return list(logits.split(q_lens if wanted == "all" else 1))

    def close(self) -> None:
        self.decoder.close()


def check(logits: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert torch.isfinite(logits).all(), "nothing beyond a row's length may get into its result"
    error = (logits.double() - wanted).abs().max() / wanted.abs().max()
    assert error <= CAPS[dtype], f"{error:.2e} of the largest logit"


def _plain_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = x @ weight.double().T
    return out if bias is None else out + bias.double()


def _quantised_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Sums of whole numbers, exact in float64."""
    inputs, of_rows = quantise_rows(rotate(x.float()))
    whole, of_outputs = quantise_weight(weight)
    out = (inputs.double() @ whole.double().T) * of_rows.double()[:, None] * of_outputs.double()
    return out if bias is None else out + bias.double()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
