"""The operator with a model's weights and a K/V cache: tensors in, logits out."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.library import DRAW, Batch, Ends, Layer, Library, Shape, Weights
from kernels.cpu.matrices import Matrices
from kernels.cpu.memory import Arena, Fill, Memory, zeros
from kernels.cpu.packed import PackedWeights
from kernels.cpu.packing import LANES, PANEL, interleave, pack_pages, unpack_pages
from kernels.cpu.quantise import MAX_INPUTS

MAX_HEAD_DIM = 256
MAX_GROUP = 48
"""Query heads of one KV head."""
ROWS_KEPT = 64
"""Rows of logits that have their memory from one step to the next; a model's vocabulary may make them 0.6 MB each."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes in elements; `score_scale` multiplies q·k, `rope_factor` cosines and sines."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    page_size: int
    num_pages: int
    norm_eps: float
    score_scale: float
    rope_factor: float = 1.0

    def unsupported(self) -> str:
        """Why the operator cannot compute this; empty if it can."""
        multiples = {
            "hidden_size": (self.hidden, PANEL),
            "intermediate_size": (self.inner, LANES),
            "head_dim": (self.head_dim, PANEL),
            "page_size": (self.page_size, LANES),
        }
        for name, (value, factor) in multiples.items():
            if value % factor:
                return f"{name} {value} is not a multiple of {factor}"
        if self.head_dim > MAX_HEAD_DIM:
            return f"head_dim {self.head_dim} is above {MAX_HEAD_DIM}"
        if max(self.hidden, self.inner, self.heads * self.head_dim) > MAX_INPUTS:
            return f"a product sums up more than {MAX_INPUTS} numbers"
        if self.heads % self.kv_heads:
            return f"{self.heads} query heads cannot share {self.kv_heads} KV heads evenly"
        if self.heads // self.kv_heads > MAX_GROUP:
            return f"{self.heads // self.kv_heads} query heads to a KV head are more than {MAX_GROUP}"
        return ""


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """One layer's parameters as [outputs, inputs] in the library's dtype; biases and norms in any."""

    qkv: Tensor
    out: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    input_norm: Tensor
    post_norm: Tensor
    qkv_bias: Tensor | None = None
    out_bias: Tensor | None = None
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


class FusedDecoder:
    """Layers are added one by one (each may go once it is packed), then `open`; or `open_packed` alone, with what was
    packed before. Then steps, one at a time.

    `memory`: what keeps the weights that are packed here; an arena of this process if none is given. `quantization`:
    "int8" = all weights but the embedding become int8 as they are packed, and what is multiplied by them, too (see
    quantise.py); norms, rotation, attention and K/V are in the library's dtype either way.
    `kv`: [layers, num_pages, kv_heads, K and V, page_size * head_dim]. `embedding`: as it was given to `open`.
    """

    embedding: Tensor

    def __init__(
        self, library: Library, shape: DecoderShape, memory: Memory | None = None, quantization: str = ""
    ) -> None:
        """Raises ValueError for a shape that it cannot compute, RuntimeError without memory for the cache."""
        if why := shape.unsupported():
            raise ValueError(why)
        self.shape = shape
        self.dtype: torch.dtype = getattr(torch, library.variant.dtype)
        self.library = library
        self._memory = memory or Arena()
        self._matrices = Matrices(self._memory, quantised=quantization == "int8")
        self._layers: list[Layer] = []
        self._handle = 0
        self._logits = np.empty((0, shape.vocab), dtype=np.float32)
        plane = shape.page_size * shape.head_dim
        self.kv = zeros((shape.layers, shape.num_pages, shape.kv_heads, 2, plane), self.dtype)

    def add_layer(self, layer: LayerTensors) -> None:
        gate_up_bias = None
        if layer.gate_bias is not None and layer.up_bias is not None:
            gate_up_bias = interleave(layer.gate_bias, layer.up_bias)
        matrix, vector = self._matrices.matrix, self._matrices.vector
        self._layers.append(
            Layer(
                qkv=matrix(layer.qkv, layer.qkv_bias),
                out=matrix(layer.out, layer.out_bias),
                gate_up=matrix(interleave(layer.gate, layer.up), gate_up_bias),
                down=matrix(layer.down, layer.down_bias),
                input_norm=vector(layer.input_norm),
                post_norm=vector(layer.post_norm),
                q_norm=vector(layer.q_norm),
                k_norm=vector(layer.k_norm),
            )
        )

    def open(self, embedding: Tensor, head: Tensor, norm: Tensor, inverse: Tensor, threads: int) -> None:
        """See `pack` and `open_packed`."""
        self.open_packed(self.pack(embedding, head, norm, inverse), threads)

    def pack(self, embedding: Tensor, head: Tensor, norm: Tensor, inverse: Tensor) -> PackedWeights:
        """All layers and the rest of the model. `embedding`, `head`: [vocab, hidden] in the library's dtype (the first
        stays as it is), `inverse`: rope's inverse frequencies. Raises what `memory` raises."""
        ends = Ends(
            embedding=self._memory.hold(embedding),
            head=self._matrices.matrix(head, None),
            norm=self._matrices.vector(norm),
            inverse=self._matrices.vector(inverse),
        )
        layers = (Layer * len(self._layers))(*self._layers)
        return self._memory.settled(PackedWeights(layers, ends, embedding, self._memory))

    def open_packed(self, packed: PackedWeights, threads: int) -> None:
        """Raises RuntimeError when the threads cannot be had."""
        self._packed = packed
        self.embedding = packed.embedding
        weights = Weights(layers=packed.layers, kv=self.kv.data_ptr())
        ctypes.memmove(ctypes.byref(weights), ctypes.byref(packed.ends), ctypes.sizeof(Ends))
        shape = self.shape
        self._shape = Shape(**{field[0]: getattr(shape, field[0]) for field in Shape._fields_})
        self._handle = self.library.open(ctypes.byref(self._shape), ctypes.byref(weights), threads) or 0
        if not self._handle:
            raise RuntimeError(f"no {threads} threads to compute with")
        self._close = weakref.finalize(self, self.library.close, self._handle)
        self._fill = Fill(self.kv)

    def step(
        self,
        tokens: Tensor,
        q_lens: Sequence[int],
        kv_lens: Sequence[int],
        page_table: Tensor,
        wanted: Tensor,
    ) -> Tensor:
        """Logits float32 [len(wanted), vocab]. Tensors are int64; `page_table` [rows, pages].

        Raises ValueError, with nothing computed, for what lies beyond the vocabulary or the cache.
        """
        arrays = (tokens.tolist(), q_lens, kv_lens, page_table.flatten().tolist(), page_table.shape[1])
        logits, _ = self.choose(*arrays, wanted.tolist(), b"")
        return torch.from_numpy(logits.copy())

    def choose(
        self,
        tokens: Sequence[int],
        q_lens: Sequence[int],
        kv_lens: Sequence[int],
        pages: Sequence[int],
        table_width: int,
        wanted: Sequence[int],
        draws: bytes,
    ) -> tuple[np.ndarray, list[int]]:
        """(logits float32 [len(wanted), vocab], good until the next step; tokens of the first of them).

        As `step`, but in plain numbers: after each step everything has to be fetched from memory again, and they touch
        the least of it. `pages`: [rows, table_width] in one. `draws`, a DRAW after the other, say how a token is chosen
        from each of the first rows of logits: -1 where none is, since the temperature is negative or the logits are
        not finite.
        """
        if not self._handle:
            raise AssertionError("the decoder is not open")
        logits, rows, num_draws = self._room_for(len(wanted)), len(q_lens), len(draws) // DRAW.size
        numbers = array("q", [*tokens, *q_lens, *kv_lens, *pages, *wanted, *[-1] * num_draws])
        at_tokens = numbers.buffer_info()[0]
        at_q_lens = at_tokens + 8 * len(tokens)
        at_pages = at_q_lens + 16 * rows
        at_wanted = at_pages + 8 * rows * table_width
        at_chosen = at_wanted + 8 * len(wanted)
        batch = Batch(
            *(rows, len(tokens), len(wanted), table_width, num_draws),
            *(at_tokens, at_q_lens, at_q_lens + 8 * rows, at_pages, at_wanted),
            *(logits.ctypes.data, draws, at_chosen),
        )
        why = self.library.step(self._handle, ctypes.byref(self._shape), ctypes.byref(batch))
        if why:
            raise ValueError(why.decode())
        return logits, numbers[-num_draws:].tolist() if num_draws else []

    def _room_for(self, rows: int) -> np.ndarray:
        """For logits: the same in each step, unless many are wanted at once."""
        if rows > ROWS_KEPT:
            return np.empty((rows, self.shape.vocab), dtype=np.float32)
        if rows > len(self._logits):
            self._logits = np.empty((rows, self.shape.vocab), dtype=np.float32)
        return self._logits[:rows]

    def read(self, pages: Sequence[int]) -> Tensor:
        """A copy in the exchange layout: [pages, layers, K and V, page_size, kv_heads, head_dim]."""
        return unpack_pages(self.kv[:, list(pages)].transpose(0, 1), self.shape.page_size).contiguous()

    def write(self, pages: Sequence[int], values: Tensor) -> None:
        """The inverse of `read`."""
        self.kv[:, list(pages)] = pack_pages(values).transpose(0, 1)

    def times(self) -> dict[str, float]:
        """See `Library.times`."""
        if not self._handle:
            raise AssertionError("the decoder is not open")
        return self.library.times(self._handle)

    def repeats(self) -> int:
        """Pieces of work that were done once more, since whoever had begun them was taken off its core."""
        if not self._handle:
            raise AssertionError("the decoder is not open")
        return int(self.library.repeats(self._handle))

    def close(self) -> None:
        """Ends the threads; what was kept goes with the object."""
        if self._handle:
            self._fill.stop()
            self._close()
            self._handle = 0
