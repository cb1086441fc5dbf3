"""Paged attention in our own Triton kernels: CUDA with nothing but torch, for every head size, window and soft cap."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.attention import AttentionBackend, AttnBatch, AttnConfig, DeviceLens
from kernels.lens import device_lens, to_device

INTERPRETER_VARIABLE = "TRITON_INTERPRET"
MAX_HEAD_DIM = 256
MAX_GROUP = 64
LEAST_CAPABILITY = (7, 5)
LEAST_FOR_BF16 = (8, 0)
MIN_SPLIT, MAX_SPLITS = 256, 64
"""Keys of a split, at least; and splits of the longest row, at most."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Keys per tile of decodes and prompts; (query, head) rows per block of prompts; warps and pipeline stages."""

    decode: int
    prompt: int
    rows: int
    decode_warps: int = 4
    prompt_warps: int = 4
    stages: int = 2


def tiles_for(config: AttnConfig) -> Tiles:
    """By size of what has to be kept on the chip: float32 takes twice the room."""
    wide = config.head_dim * config.dtype.itemsize
    if wide <= 256:  # head_dim 128 in 16 bits
        return Tiles(decode=64, prompt=64, rows=128, prompt_warps=8 if wide > 128 else 4, stages=3)
    if wide <= 512:
        return Tiles(decode=32, prompt=32, rows=64)
    return Tiles(decode=16, prompt=16, rows=64)


@dataclass(slots=True)
class _Plan:
    """`means`, `weights`: what each split of each decode leaves for `combine_kernel`, used by one layer after another
    and by one step after another.
    `blocks`: int32 [num_blocks, 2] on the device, (row of the batch, first query) of each block of prompts."""

    num_splits: int
    means: Tensor
    weights: Tensor
    blocks: Tensor


class TritonAttention(AttentionBackend):
    name = "triton"
    devices = ("cuda", "cpu")
    on_request = ("cpu",)
    batch_invariant = True
    graphs = True

    @classmethod
    def unavailable(cls) -> str | None:
        try:
            import triton
        except Exception as error:  # A broken installation raises what it likes.
            return f"triton cannot be imported: {type(error).__name__}: {error}"
        return None if getattr(triton, "jit", None) else "triton is installed without its compiler"

    @classmethod
    def unsupported(cls, config: AttnConfig) -> list[str]:
        problems = []
        if config.head_dim > MAX_HEAD_DIM:
            problems.append(f"head_dim {config.head_dim} is larger than {MAX_HEAD_DIM}")
        if config.group > MAX_GROUP:
            problems.append(f"{config.group} query heads share a KV head, more than {MAX_GROUP}")
        return problems + _device_problems(config)

    def __init__(self, config: AttnConfig) -> None:
        super().__init__(config)
        # Here, since a machine without Triton can read this file.
        from kernels.triton_paged.decode import combine_kernel, decode_kernel
        from kernels.triton_paged.launch import launch
        from kernels.triton_paged.tiles import LOG2_E
        from kernels.triton_paged.varlen import varlen_kernel
        from kernels.triton_paged.write import write_kernel

        self._launch = launch
        self._decode_kernel, self._combine_kernel = decode_kernel, combine_kernel
        self._varlen_kernel, self._write_kernel = varlen_kernel, write_kernel
        self._room = torch.empty(0, dtype=torch.float32, device=config.device)
        self._tiles = tiles_for(config)
        self._split = split_for(config.max_context)
        self._group_padded = max(16, _power_of_two(config.group))
        self._dim_padded = max(16, _power_of_two(config.head_dim))
        self._scale = config.scale if config.softcap else config.scale * LOG2_E
        self._common: dict[str, Any] = {
            "windowed": config.sliding_window is not None,
            "head_dim": config.head_dim,
            "dim_padded": self._dim_padded,
        }

    # -- once per step ---------------------------------------------------------------------------------------------

    def plan(self, batch: AttnBatch) -> None:
        config, decodes = self.config, batch.num_decode
        lens = device_lens(batch)
        num_splits = -(-max(batch.kv_lens[:decodes], default=0) // self._split)
        splits = decodes * config.num_q_heads * num_splits
        room = self._room_for(splits * (config.head_dim + 1))
        means, weights = room.split((splits * config.head_dim, splits))
        blocks = to_device(torch.from_numpy(self._blocks(batch)), config.device)
        batch.lens, batch.plan = lens, _Plan(num_splits, means, weights, blocks)

    def _room_for(self, numbers: int) -> Tensor:
        """float32 [numbers], the same memory for every step: they come one after the other on one stream, graphs too.
        A graph of many rows has 1 MiB for each; so many graphs with memory of their own would take gigabytes."""
        if len(self._room) < numbers:  # Graphs that have the smaller one keep it.
            self._room = torch.empty(numbers, dtype=torch.float32, device=self.config.device)
        return self._room[:numbers]

    def _blocks(self, batch: AttnBatch) -> np.ndarray:
        step = self._tiles.rows // self.config.group
        blocks = [
            (row, first)
            for row in range(batch.num_decode, len(batch.q_lens))
            for first in range(0, batch.q_lens[row], step)
        ]
        # The longest first: they would be waited for at the end.
        blocks.sort(key=lambda block: batch.kv_lens[block[0]] - batch.q_lens[block[0]] + block[1], reverse=True)
        return np.array(blocks, dtype=np.int32).reshape(-1, 2)

    # -- once per layer --------------------------------------------------------------------------------------------

    def write_kv(self, k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, batch: AttnBatch) -> None:
        config = self.config
        if k.stride(2) != 1 or v.stride(2) != 1 or not (k_pool.is_contiguous() and v_pool.is_contiguous()):
            raise ValueError("keys and values must be dense in their last dimension, and planes of the pool altogether")
        self._launch(
            self._write_kernel,
            (len(k),),
            k.device,
            k,
            v,
            k_pool,
            v_pool,
            batch.slots,
            *k.stride()[:2],
            *v.stride()[:2],
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            numbers_padded=_power_of_two(config.num_kv_heads * config.head_dim),
        )

    def forward(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, batch: AttnBatch) -> Tensor:
        plan: _Plan = batch.plan
        if batch.lens is None:
            raise AssertionError("plan() comes before forward()")
        if q.stride(2) != 1 or k_pool.stride() != v_pool.stride() or k_pool.stride(3) != 1:
            raise ValueError("queries and pool must be dense in their last dimension, both planes alike")
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if batch.num_decode:
            self._decodes(q, k_pool, v_pool, batch, batch.lens, plan, out)
        self._prompts(q, k_pool, v_pool, batch.lens, plan, out)
        return out

    def _decodes(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        batch: AttnBatch,
        lens: DeviceLens,
        plan: _Plan,
        out: Tensor,
    ) -> None:
        config = self.config
        self._launch(
            self._decode_kernel,
            (batch.num_decode, config.num_kv_heads, plan.num_splits),
            q.device,
            q,
            k_pool,
            v_pool,
            lens.page_table,
            lens.kv_lens,
            plan.means,
            plan.weights,
            self._scale,
            config.softcap,
            config.sliding_window or 0,
            plan.num_splits,
            *q.stride()[:2],
            *k_pool.stride()[:3],
            lens.page_table.stride(0),
            capped=config.softcap > 0,
            group=config.group,
            group_padded=self._group_padded,
            page_size=config.page_size,
            tile=self._tiles.decode,
            split=self._split,
            **self._common,
            num_warps=self._tiles.decode_warps,
            num_stages=self._tiles.stages,
        )
        self._launch(
            self._combine_kernel,
            (batch.num_decode, config.num_q_heads),
            q.device,
            plan.means,
            plan.weights,
            lens.kv_lens,
            out,
            config.sliding_window or 0,
            plan.num_splits,
            *out.stride()[:2],
            split=self._split,
            **self._common,
            num_warps=1,
        )

    def _prompts(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, lens: DeviceLens, plan: _Plan, out: Tensor) -> None:
        config = self.config
        self._launch(
            self._varlen_kernel,
            (config.num_kv_heads, len(plan.blocks)),
            q.device,
            q,
            k_pool,
            v_pool,
            lens.page_table,
            lens.q_start,
            lens.kv_lens,
            plan.blocks,
            out,
            self._scale,
            config.softcap,
            config.sliding_window or 0,
            *q.stride()[:2],
            *k_pool.stride()[:3],
            lens.page_table.stride(0),
            *out.stride()[:2],
            capped=config.softcap > 0,
            group=config.group,
            page_size=config.page_size,
            rows=self._tiles.rows,
            tile=self._tiles.prompt,
            **self._common,
            num_warps=self._tiles.prompt_warps,
            num_stages=self._tiles.stages,
        )


def split_for(max_context: int) -> int:
    """Keys of a split: a power of two, by the longest row that may come and not by those that are there."""
    return max(MIN_SPLIT, _power_of_two(-(-max_context // MAX_SPLITS)))


def _power_of_two(number: int) -> int:
    """The least that is not smaller."""
    return 1 << max(0, number - 1).bit_length()


def _device_problems(config: AttnConfig) -> list[str]:
    if config.device.type == "cpu":
        if os.environ.get(INTERPRETER_VARIABLE) != "1":
            return [f"on a CPU it runs in Triton's interpreter only, for tests: {INTERPRETER_VARIABLE}=1"]
        return ["Triton's interpreter does not know bfloat16"] if config.dtype is torch.bfloat16 else []
    capability = torch.cuda.get_device_capability(config.device)
    least = LEAST_FOR_BF16 if config.dtype is torch.bfloat16 else LEAST_CAPABILITY
    if capability < least:
        return [f"compute capability {capability[0]}.{capability[1]} is less than {least[0]}.{least[1]}"]
    return []
