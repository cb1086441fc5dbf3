"""The torch runner: plans in, sampled tokens out, on CPU or CUDA with nothing but torch."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from actors.engine.plan import NUM_RESERVED_PAGES, StepPlan, StepResult
from actors.model.card import ModelCard
from actors.model.errors import ModelUnusable
from actors.model.weights import Weights
from actors.runner.base import RunnerInfo
from actors.runner.torch.decoder import Decoder
from actors.runner.torch.inputs import StepInputs, build_inputs
from actors.runner.torch.sampler import sample
from kernels.attention import AttnConfig, select_backend

CPU_PAGE_SIZE, CUDA_PAGE_SIZE = 16, 64


class TorchHandle:
    """A step on the compute thread."""

    def __init__(self, future: Future[StepResult]) -> None:
        self._future = future

    def wait(self) -> StepResult:
        return self._future.result()


class TorchRunner:
    """Implements `ModelRunner`. Steps run in order on one compute thread; torch lets go of the GIL while it works.

    Raises ModelUnusable when the model or its KV cache cannot be loaded here, NoBackend for an attention backend that
    cannot serve it. `kv_tokens` is rounded down to whole pages; `max_context` 0 means what the model allows.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        dtype: str = "auto",
        device: str = "cpu",
        page_size: int = 0,
        kv_tokens: int = 65536,
        max_context: int = 0,
        attention: str = "auto",
        threads: int = 1,
        vocab_bytes: tuple[bytes, ...] = (),
        eos_ids: frozenset[int] | None = None,
    ) -> None:
        self._device = torch.device(device)
        self._dtype = choose_dtype(dtype, self._device)
        card = ModelCard.read(folder)
        size = page_size or (CUDA_PAGE_SIZE if self._device.type == "cuda" else CPU_PAGE_SIZE)
        self._attention, self.attention_reasons = select_backend(
            AttnConfig(
                num_q_heads=card.num_heads,
                num_kv_heads=card.num_kv_heads,
                head_dim=card.head_dim,
                dtype=self._dtype,
                device=self._device,
                page_size=size,
                scale=card.head_dim**-0.5,
            ),
            attention,
        )
        self._info = RunnerInfo(
            name="torch",
            vocab_size=card.vocab_size,
            page_size=size,
            num_pages=kv_tokens // size + NUM_RESERVED_PAGES,
            max_context=min(max_context or card.max_context, card.max_context),
            eos_ids=card.eos_ids if eos_ids is None else eos_ids,
            vocab_bytes=vocab_bytes,
            description=f"torch {str(self._dtype).removeprefix('torch.')} on {self._device}, "
            f"attention {self._attention.name}, {threads} threads",
        )
        self._last: dict[int, int] = {}
        # omp_set_num_threads speaks for the calling thread only: it has to be said on the thread that computes.
        self._thread = ThreadPoolExecutor(1, "remora-compute", initializer=partial(torch.set_num_threads, threads))
        self._thread.submit(self._load, Path(folder), card).result()

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def launch(self, plan: StepPlan) -> TorchHandle:
        return TorchHandle(self._thread.submit(self._run, build_inputs(plan, self._info.page_size)))

    def close(self) -> None:
        """Let the compute thread end and the memory go."""
        self._thread.shutdown(wait=True)
        self._kv = torch.empty(0)
        self._last = {}

    # -- on the compute thread -------------------------------------------------------------------------------------

    def _load(self, folder: Path, card: ModelCard) -> None:
        with Weights(folder, self._dtype) as weights:
            self._decoder = Decoder(card, weights, self._device)
        info = self._info
        shape = (card.num_layers, 2, info.num_pages, info.page_size, card.num_kv_heads, card.head_dim)
        try:
            self._kv = torch.zeros(shape, dtype=self._dtype, device=self._device)
        except RuntimeError as error:
            needed = torch.Size(shape).numel() * self._dtype.itemsize / 2**30
            raise ModelUnusable(
                f"no memory for a KV cache of {info.num_pages * info.page_size} tokens ({needed:.1f} GiB); "
                "lower engine.kv_tokens"
            ) from error

    @torch.inference_mode()
    def _run(self, inputs: StepInputs) -> StepResult:
        for index, uid in inputs.pending:
            inputs.tokens[index] = self._last[uid]
        device, batch = self._device, inputs.batch
        batch.page_table, batch.slots = batch.page_table.to(device), batch.slots.to(device)
        self._attention.plan(batch)
        logits = self._decoder.forward(
            inputs.tokens.to(device),
            inputs.positions.to(device),
            inputs.wanted.to(device),
            self._attention,
            batch,
            self._kv,
        )
        chosen = sample(logits, inputs.samples, self._last, self._info.eos_ids) if inputs.samples else []
        sampled, failed = {}, {}
        for row, token in zip(inputs.samples, chosen, strict=True):
            if token < 0:
                failed[row.uid] = "the model's logits are not numbers"
                token = 0
            else:
                sampled[row.uid] = token
        self._last = {row.uid: max(0, token) for row, token in zip(inputs.samples, chosen, strict=True)}
        return StepResult(sampled=sampled, failed=failed)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto`: bfloat16 where the device computes in it, else float32 on CPU and float16 on CUDA."""
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.bfloat16 if _cpu_computes_bfloat16() else torch.float32


def _cpu_computes_bfloat16() -> bool:
    """AVX512-BF16 or AMX. Without them bf16 is emulated and slower than float32."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
