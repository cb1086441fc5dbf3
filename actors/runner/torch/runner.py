"""The torch runner: plans in, sampled tokens out, on CPU or CUDA with nothing but torch."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from actors.engine.plan import NUM_RESERVED_PAGES, StepPlan, StepResult
from actors.model.card import ModelCard
from actors.model.errors import ModelUnusable
from actors.model.weights import Weights
from actors.runner.base import RunnerInfo
from actors.runner.copied import check_length
from actors.runner.grammar.matchers import Matchers, matchers_for
from actors.runner.torch.choose import choose
from actors.runner.torch.decoder import Decoder
from actors.runner.torch.fingerprint import fingerprint
from actors.runner.torch.inputs import StepInputs, build_inputs
from actors.runner.torch.memory import available_bytes
from actors.runner.torch.pages import TorchPagesRead, TorchPagesWritten, from_bytes, gather, page_shape, scatter
from kernels.attention import AttnConfig, select_backend

logger = logging.getLogger("remora.runner")

CPU_PAGE_SIZE, CUDA_PAGE_SIZE = 16, 64
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(slots=True)
class _Model:
    """`kv`: [num_layers, 2, num_pages, page_size, num_kv_heads, head_dim]."""

    decoder: Decoder
    kv: Tensor


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
    `vocab_bytes` may be shorter than the model's vocabulary (padding rows stand for no text).
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
        if max_context > card.max_context:
            raise ModelUnusable(f"a context of {max_context} tokens is asked for; the model has {card.max_context}")
        size = page_size or (CUDA_PAGE_SIZE if self._device.type == "cuda" else CPU_PAGE_SIZE)
        if kv_tokens < size:
            raise ModelUnusable(f"a KV cache of {kv_tokens} tokens holds no page of {size}")
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
        ends = frozenset(t for t in (card.eos_ids if eos_ids is None else eos_ids) if 0 <= t < card.vocab_size)
        vocab_bytes = _padded(vocab_bytes, card.vocab_size)
        matchers = matchers_for(vocab_bytes, ends)
        self._matchers = matchers if isinstance(matchers, Matchers) else None
        self._info = RunnerInfo(
            name="torch",
            vocab_size=card.vocab_size,
            page_size=size,
            num_pages=kv_tokens // size + NUM_RESERVED_PAGES,
            max_context=max_context or card.max_context,
            eos_ids=ends,
            vocab_bytes=vocab_bytes,
            no_grammars=matchers if isinstance(matchers, str) else "",
            description=f"torch {str(self._dtype).removeprefix('torch.')} on {self._device}, "
            f"attention {self._attention.name}, {threads} threads",
        )
        self._last: dict[int, int] = {}
        # omp_set_num_threads speaks for the calling thread only: it has to be said on the thread that computes.
        self._thread = ThreadPoolExecutor(1, "remora-compute", initializer=partial(torch.set_num_threads, threads))
        try:
            self._model: _Model | None = self._thread.submit(self._load, Path(folder), card).result()
            shape, weights = page_shape(self._model.kv), fingerprint(folder)
            self._info = replace(
                self._info,
                page_bytes=math.prod(shape) * self._dtype.itemsize,
                kv_format=f"torch {self._dtype} {list(shape)} of {weights}",
                weights=weights,
            )
        except BaseException:
            self._thread.shutdown()
            raise

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @property
    def matchers(self) -> Matchers | None:
        return self._matchers

    def launch(self, plan: StepPlan) -> TorchHandle:
        return TorchHandle(self._thread.submit(self._run, build_inputs(plan, self._info.page_size)))

    def read_pages(self, pages: Sequence[int]) -> TorchPagesRead:
        return TorchPagesRead(self._thread.submit(self._read, tuple(pages)))

    def write_pages(self, pages: Sequence[int], data: bytes) -> TorchPagesWritten:
        check_length(pages, data, self._info)
        return TorchPagesWritten(self._thread.submit(self._write, tuple(pages), from_bytes(data, self._dtype)))

    def close(self) -> None:
        """Let the compute thread end and the memory go."""
        self._thread.shutdown(wait=True)
        self._model = None
        self._last = {}

    # -- on the compute thread -------------------------------------------------------------------------------------

    def _load(self, folder: Path, card: ModelCard) -> _Model:
        with Weights(folder, self._dtype) as weights:
            decoder = Decoder(card, weights, self._device)
        return _Model(decoder, self._empty_kv(card))

    def _empty_kv(self, card: ModelCard) -> Tensor:
        """Zeros. On CPU the memory is asked for first: an allocation beyond it gets processes killed, no error."""
        info = self._info
        shape = (card.num_layers, 2, info.num_pages, info.page_size, card.num_kv_heads, card.head_dim)
        needed = math.prod(shape) * self._dtype.itemsize
        free = available_bytes() if self._device.type == "cpu" else None
        text = f"no memory for a KV cache of {info.num_pages * info.page_size} tokens ({needed / 2**30:.1f} GiB)"
        if free is not None and needed > free:
            raise ModelUnusable(f"{text}: {free / 2**30:.1f} GiB are free; lower engine.kv_tokens")
        try:
            return torch.zeros(shape, dtype=self._dtype, device=self._device)
        except RuntimeError as error:
            raise ModelUnusable(f"{text}; lower engine.kv_tokens") from error

    @torch.inference_mode()
    def _read(self, pages: tuple[int, ...]) -> Tensor:
        return gather(self._loaded().kv, pages)

    @torch.inference_mode()
    def _write(self, pages: tuple[int, ...], values: Tensor) -> None:
        scatter(self._loaded().kv, pages, values)

    def _loaded(self) -> _Model:
        if self._model is None:
            raise AssertionError("the runner is closed")
        return self._model

    @torch.inference_mode()
    def _run(self, inputs: StepInputs) -> StepResult:
        try:
            result = self._compute(inputs)
        except Exception:
            logger.exception("a step failed; its %d requests are tried one by one", len(inputs.uids))
            result = self._one_by_one(inputs)
        # The step after this one may be launched already and name a request that failed here. It is over by then, so
        # any token will do; a uid that is in neither is a fault and found out.
        self._last = {**dict.fromkeys([*result.failed, *result.dead_ends], 0), **result.sampled}
        return result

    def _one_by_one(self, inputs: StepInputs) -> StepResult:
        """One request's fault is not another's: only those that fail alone have failed."""
        results = [self._alone(inputs, row) for row in range(len(inputs.uids))]
        return StepResult(
            sampled={uid: token for result in results for uid, token in result.sampled.items()},
            failed={uid: message for result in results for uid, message in result.failed.items()},
            dead_ends={uid: message for result in results for uid, message in result.dead_ends.items()},
        )

    def _alone(self, inputs: StepInputs, row: int) -> StepResult:
        try:
            return self._compute(inputs.alone(row))
        except Exception as error:
            logger.exception("request %d cannot be computed", inputs.uids[row])
            return StepResult(sampled={}, failed={inputs.uids[row]: f"{type(error).__name__}: {error}"})

    def _compute(self, inputs: StepInputs) -> StepResult:
        model = self._loaded()
        for index, uid in inputs.pending:
            inputs.tokens[index] = self._last[uid]
        device, batch = self._device, inputs.batch
        batch.page_table, batch.slots = batch.page_table.to(device), batch.slots.to(device)
        self._attention.plan(batch)
        tokens, positions, wanted = (t.to(device) for t in (inputs.tokens, inputs.positions, inputs.wanted))
        logits = model.decoder.forward(tokens, positions, wanted, self._attention, batch, model.kv)
        if not inputs.samples:
            return StepResult(sampled={})
        return choose(logits, inputs.samples, self._last, self._info.eos_ids, self._matchers)


def _padded(vocab_bytes: tuple[bytes, ...], vocab_size: int) -> tuple[bytes, ...]:
    """As long as the vocabulary; empty stays empty (the runner then knows no text)."""
    return (*vocab_bytes, *(b"",) * (vocab_size - len(vocab_bytes))) if vocab_bytes else ()


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto`: bfloat16 where the device computes in it, else float32 on CPU and float16 on CUDA."""
    if name != "auto":
        if name not in DTYPES:
            raise ValueError(f"dtype {name!r} is not one of auto, {', '.join(DTYPES)}")
        return DTYPES[name]
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
