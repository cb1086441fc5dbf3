"""The runner for GPUs: tokens are drawn there and stay there for the next step, which begins before the host has read
them. So a GPU computes while the host plans, sends and answers (`engine.depth` 1).

What the host has to see between two steps (grammars, penalties, biases, log probabilities, scores of prompts) is
computed by the torch runner as it is: such a step waits for the one before it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from actors.engine.plan import StepPlan, StepResult
from actors.runner.base import PagesRead, PagesWritten, StepHandle
from actors.runner.copied import check_length
from actors.runner.randomness import uniform
from actors.runner.torch.batch_sampler import draw_many
from actors.runner.torch.inputs import SampleRow, StepInputs, build_inputs
from actors.runner.torch.local_model import LocalModel
from actors.runner.torch.pages import from_bytes
from actors.runner.torch.runner import TorchRunner
from actors.runner.torch.sampler import NO_TOKEN, NOT_FINITE, needs_adjusting
from actors.runner.torch.side_copies import CudaStreams, Mark, PagesComing, PagesLeaving, SideCopies
from kernels.lens import to_device

logger = logging.getLogger("remora.runner")


@dataclass(slots=True)
class Queued:
    """A step that the device has been given. `tokens`: int64 [num_samples] on the host, there once `arrived` returns;
    `rows`: who they are of."""

    rows: list[SampleRow]
    tokens: Tensor
    arrived: Callable[[], None]

    def result(self) -> StepResult:
        """Waits for the device. The same whenever and by whomever it is asked for."""
        self.arrived()
        chosen = dict(zip((row.uid for row in self.rows), self.tokens.tolist(), strict=True))
        return StepResult(
            sampled={uid: token for uid, token in chosen.items() if token != NO_TOKEN},
            failed={uid: NOT_FINITE for uid, token in chosen.items() if token == NO_TOKEN},
        )


class OverlappedHandle:
    """A step that is queued, or was computed at once."""

    def __init__(self, future: Future[Queued | StepResult]) -> None:
        self._future = future

    def wait(self) -> StepResult:
        done = self._future.result()
        return done.result() if isinstance(done, Queued) else done


class OverlappedRunner(TorchRunner):
    """Implements `ModelRunner`; computes what the torch runner computes. For a model that is on one device as a whole.

    What the last step sampled is on the device (`_queued`), on the host (`_last`), or both.
    """

    _queued: Queued | None = None
    _drawn: Tensor | None = None
    """int64 on the device: tokens of `_queued`, NO_TOKEN where there is none."""
    _copies: SideCopies | None = None
    """What copies pages beside the steps, on a GPU."""

    def __init__(self, folder: str | os.PathLike[str], **settings: Any) -> None:
        """As `TorchRunner`."""
        super().__init__(folder, **settings)
        model, device = self._loaded(), self._setup.device
        if device.type == "cuda" and isinstance(model, LocalModel):
            self._copies = SideCopies(model.kv, CudaStreams(device), model.overwritten)

    def read_pages(self, pages: Sequence[int]) -> PagesRead:  # type: ignore[override]
        copies = self._copies
        if copies is None or not pages:
            return super().read_pages(pages)
        host = copies.room(len(pages))
        return PagesLeaving(self._thread.submit(self._begin, copies.begin_read, tuple(pages), host), host)

    def write_pages(self, pages: Sequence[int], data: bytes) -> PagesWritten:  # type: ignore[override]
        copies = self._copies
        if copies is None or not pages:
            return super().write_pages(pages, data)
        check_length(pages, data, self._info)
        values = copies.pinned(from_bytes(data, self._setup.dtype))
        return PagesComing(self._thread.submit(self._begin, copies.begin_write, tuple(pages), values), values)

    def close(self) -> None:
        if self._copies is not None:
            self._thread.submit(self._copies.close).result()
            self._copies = None
        super().close()

    def launch(self, plan: StepPlan) -> StepHandle:  # type: ignore[override]
        return OverlappedHandle(self._thread.submit(self._start, build_inputs(plan, self._info.page_size)))

    # -- on the compute thread -------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _begin(self, copy: Callable[[Sequence[int], Tensor], Mark], pages: Sequence[int], host: Tensor) -> Mark:
        return copy(pages, host)

    @torch.inference_mode()
    def _start(self, inputs: StepInputs) -> Queued | StepResult:
        if self._copies is not None:
            self._copies.before(inputs.batch)
        if all(map(_needs_no_host, inputs.samples)) and not inputs.scored:
            try:
                return self._enqueue(inputs)
            except Exception:
                logger.exception("a step could not be queued; it is computed at once")
        self._read_last()
        return self._run(inputs)

    def _enqueue(self, inputs: StepInputs) -> Queued:
        inputs.tokens = self._with_pending(inputs)
        logits = self._loaded().step(inputs)
        drawn = draw_rows(logits, inputs.samples)
        tokens, arrived = to_host(drawn)
        self._queued, self._drawn = Queued(inputs.samples, tokens, arrived), drawn
        self._last = {}
        return self._queued

    def _with_pending(self, inputs: StepInputs) -> Tensor:
        """The step's tokens on the device, those included that nobody on the host knows yet."""
        device = self._setup.device
        if self._queued is None or self._drawn is None:
            for index, uid in inputs.pending:
                inputs.tokens[index] = self._last[uid]
        tokens = to_device(inputs.tokens, device)
        if not inputs.pending or self._queued is None or self._drawn is None:
            return tokens
        place = {row.uid: number for number, row in enumerate(self._queued.rows)}
        into = to_device(torch.tensor([index for index, _ in inputs.pending]), device)
        of = to_device(torch.tensor([place[uid] for _, uid in inputs.pending]), device)
        # Who has no token is over, and any will do; the embedding must not be asked for row -1.
        tokens[into] = self._drawn[of].clamp(min=0)
        return tokens

    def _read_last(self) -> None:
        """Have on the host what the last step sampled."""
        if self._queued is not None:
            result = self._queued.result()
            self._last = {**dict.fromkeys(result.failed, 0), **result.sampled}
            self._queued = self._drawn = None


def draw_rows(logits: Tensor, rows: list[SampleRow]) -> Tensor:
    """int64 [num_rows] on the device; NO_TOKEN for a row that holds NaN or infinity, or nothing that may be chosen.

    logits: float32 [num_rows or none, vocab_size]."""
    if not rows:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    tokens = logits.argmax(dim=-1)
    usable = logits.gather(1, tokens[:, None])[:, 0].isfinite()  # Of a row with a NaN it is NaN.
    drawing = [index for index, row in enumerate(rows) if row.sampling.temperature > 0]
    if drawing:
        which = to_device(torch.tensor(drawing), logits.device)
        settings = [rows[index].sampling for index in drawing]
        numbers = [uniform(rows[index].sampling.seed, rows[index].output_index) for index in drawing]
        tokens[which] = draw_many(logits[which], settings, numbers)
    return torch.where(usable, tokens, NO_TOKEN)


def to_host(tokens: Tensor) -> tuple[Tensor, Callable[[], None]]:
    """A copy on the host, and what waits until it is there. Nothing waits before."""
    if tokens.device.type != "cuda":
        return tokens, lambda: None
    host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
    host.copy_(tokens, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(tokens.device))
    return host, event.synchronize


def _needs_no_host(row: SampleRow) -> bool:
    return not row.constrained and row.sampling.logprobs is None and not needs_adjusting(row)
