"""The torch runner: plans in, sampled tokens out, on CPU or CUDA with nothing but torch."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from actors.engine.plan import StepPlan, StepResult
from actors.model.errors import ModelUnusable
from actors.runner.base import RunnerInfo
from actors.runner.copied import check_length
from actors.runner.grammar.matchers import Matchers, matchers_for
from actors.runner.torch.choose import settle
from actors.runner.torch.graphs import CudaCapturer, GraphedModel
from actors.runner.torch.group import ALONE, RankGroup, RanksLost
from actors.runner.torch.inputs import build_inputs
from actors.runner.torch.local_model import LocalModel, StepModel, attention_for
from actors.runner.torch.pages import TorchPagesRead, TorchPagesWritten, from_bytes
from actors.runner.torch.ranks import LedModel
from actors.runner.torch.setup import ModelSetup

logger = logging.getLogger("remora.runner")


class Step(Protocol):
    """What of a step's inputs is needed to find out whose fault it was."""

    uids: list[int]

    def alone(self, row: int) -> Step:
        """One row of the batch as a step of its own."""


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
    With `group` it has the first rank's part of the model; `lead` before the first step. `_how` is what a runner with
    another forward pass overrides. `remark` is added to the description. `gpu_memory_share`, `ranks`: see
    `ModelSetup.of`. `cuda_graphs`: whether decodes are captured where that is possible, in batches of up to
    `max_running`.
    """

    name = "torch"
    attention_reasons: dict[str, str]

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
        group: RankGroup | None = None,
        remark: str = "",
        gpu_memory_share: float = 0.9,
        ranks: int = 1,
        quantization: str = "",
        cuda_graphs: bool = True,
        max_running: int = 64,
    ) -> None:
        self._setup = setup = ModelSetup.of(
            folder,
            dtype=dtype,
            device=device,
            page_size=page_size,
            kv_tokens=kv_tokens,
            attention=attention,
            gpu_memory_share=gpu_memory_share,
            ranks=ranks,
            quantization=quantization,
        )
        self._graph_rows = max_running if cuda_graphs else 0
        card = setup.card
        if max_context > card.max_context:
            raise ModelUnusable(f"a context of {max_context} tokens is asked for; the model has {card.max_context}")
        how, load = self._how(setup, group, threads)
        ends = frozenset(t for t in (card.eos_ids if eos_ids is None else eos_ids) if 0 <= t < card.vocab_size)
        vocab_bytes = _padded(vocab_bytes, card.vocab_size)
        matchers = matchers_for(vocab_bytes, ends)
        self._matchers = matchers if isinstance(matchers, Matchers) else None
        self._info = RunnerInfo(
            name=self.name,
            vocab_size=card.vocab_size,
            page_size=setup.page_size,
            num_pages=setup.num_pages,
            max_context=max_context or card.max_context,
            eos_ids=ends,
            vocab_bytes=vocab_bytes,
            no_grammars=matchers if isinstance(matchers, str) else "",
            description=how + (f" ({remark})" if remark else ""),
            page_bytes=setup.page_bytes,
            not_taken=self.attention_reasons,
        )
        logger.info("%s; attention not by %s", how, self.attention_reasons)
        self._last: dict[int, int] = {}
        self._group = group
        self._thread = self._executor(threads)
        try:
            self._model: StepModel | None = self._thread.submit(load).result()
            self._info = replace(self._info, kv_format=setup.kv_format(), weights=setup.weights())
        except BaseException:
            self._thread.shutdown()
            raise

    def lead(self, listening: socket.socket, timeout_s: float) -> None:
        """Meet the other ranks, who know where (see `group.listen`). `timeout_s`: how long a step may wait for one.

        Raises ModelUnusable when they have loaded something else, RuntimeError when they do not come.
        """
        if self._group is None:
            raise AssertionError("a runner without a group has nobody to meet")
        self._group.connect(listening, self._setup.device, timeout_s, self._setup.identity())

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
        return TorchPagesWritten(self._thread.submit(self._write, tuple(pages), from_bytes(data, self._setup.dtype)))

    def close(self) -> None:
        """Let the compute thread end, the other ranks, and the memory go."""
        if self._model is not None:
            self._thread.submit(self._model.close).result()
        self._thread.shutdown(wait=True)
        self._model = None
        self._last = {}

    def _how(self, setup: ModelSetup, group: RankGroup | None, threads: int) -> tuple[str, Callable[[], StepModel]]:
        """What computes, in words, and what loads it, on the compute thread. Raises as the constructor does."""
        if setup.quantization:
            raise ModelUnusable(f"{setup.quantization} weights are computed by the cpu runner alone")
        backend, self.attention_reasons = attention_for(setup, group or ALONE)
        dtype = str(setup.dtype).removeprefix("torch.")
        words = f"torch {dtype} on {setup.device}, attention {backend.description}, {threads} threads"
        if group is None and setup.device.type == "cuda" and backend.graphs and self._graph_rows:
            rows = self._graph_rows
            words = f"{words}, CUDA graphs of up to {rows} decodes"
            return words, lambda: GraphedModel(setup, backend, CudaCapturer(setup.device), rows)
        if group is None:
            return words, lambda: LocalModel(setup, backend)
        return f"{words}, {group.size} ranks", lambda: LedModel(setup, LocalModel(setup, backend, group), group)

    def _executor(self, threads: int) -> Executor:
        """Does what is submitted in that order, one thing at a time."""
        # omp_set_num_threads speaks for the calling thread only: it has to be said on the thread that computes.
        return ThreadPoolExecutor(1, "remora-compute", initializer=partial(torch.set_num_threads, threads))

    # -- on the compute thread -------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _read(self, pages: tuple[int, ...]) -> Tensor:
        return self._loaded().read(pages)

    @torch.inference_mode()
    def _write(self, pages: tuple[int, ...], values: Tensor) -> None:
        self._loaded().write(pages, values)

    def _loaded(self) -> StepModel:
        if self._model is None:
            raise AssertionError("the runner is closed")
        return self._model

    def _run(self, inputs: Step) -> StepResult:
        try:
            result = self._compute(inputs)
        except RanksLost:
            raise
        except Exception:
            logger.exception("a step failed; its %d requests are tried one by one", len(inputs.uids))
            result = self._one_by_one(inputs)
        # The step after this one may be launched already and name a request that failed here. It is over by then, so
        # any token will do; a uid that is in neither is a fault and found out.
        self._last = {**dict.fromkeys([*result.failed, *result.dead_ends], 0), **result.sampled}
        return result

    def _one_by_one(self, inputs: Step) -> StepResult:
        """One request's fault is not another's: only those that fail alone have failed."""
        results = [self._alone(inputs, row) for row in range(len(inputs.uids))]
        return StepResult(
            sampled={uid: token for result in results for uid, token in result.sampled.items()},
            failed={uid: message for result in results for uid, message in result.failed.items()},
            dead_ends={uid: message for result in results for uid, message in result.dead_ends.items()},
            logprobs={uid: told for result in results for uid, told in result.logprobs.items()},
            scores={uid: told for result in results for uid, told in result.scores.items()},
        )

    def _alone(self, inputs: Step, row: int) -> StepResult:
        try:
            return self._compute(inputs.alone(row))
        except RanksLost:
            raise
        except Exception as error:
            logger.exception("request %d cannot be computed", inputs.uids[row])
            return StepResult(sampled={}, failed={inputs.uids[row]: f"{type(error).__name__}: {error}"})

    @torch.inference_mode()
    def _compute(self, inputs: Any) -> StepResult:
        """The step; `inputs` are what `launch` has made: here, StepInputs."""
        model = self._loaded()
        for index, uid in inputs.pending:
            inputs.tokens[index] = self._last[uid]
        logits = model.step(inputs)
        if not len(inputs.wanted):
            return StepResult(sampled={})
        return settle(logits, inputs, self._last, self._info.eos_ids, self._matchers)


def _padded(vocab_bytes: tuple[bytes, ...], vocab_size: int) -> tuple[bytes, ...]:
    """As long as the vocabulary; empty stays empty (the runner then knows no text)."""
    return (*vocab_bytes, *(b"",) * (vocab_size - len(vocab_bytes))) if vocab_bytes else ()
