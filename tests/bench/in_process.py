"""The prefill and decode shapes straight on an engine and a runner: what is left without actors and HTTP."""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass, field

from actors.engine.core import Output
from actors.engine.engine import Engine
from actors.engine.plan import StepPlan
from actors.messages import Finished, Outcome, SamplingParams, Submit, Tokens, singly
from actors.runner.base import ModelRunner, StepHandle
from actors.worker.build import build_runner
from actors.worker.shell import engine_settings
from configs import RemoraConfig
from tests.bench.figures import BenchError, Figures, Reply, decode_figures, prefill_figures
from tests.bench.shapes import Shapes

IN_PROCESS_NAMES = ("prefill", "decode")


@dataclass(slots=True)
class Heard:
    """What came of one request so far."""

    first: float | None = None
    ids: list[int] = field(default_factory=list)
    end: Finished | None = None
    ended: float = 0.0


class InProcess:
    """One engine and one runner in this thread, stepped as the worker's loop steps them. `close` it."""

    def __init__(self, config: RemoraConfig) -> None:
        self.runner: ModelRunner
        self.runner, bos_id = build_runner(config)
        self.engine = Engine(engine_settings(config, self.runner.info, bos_id))
        self._launched: deque[tuple[StepPlan, StepHandle]] = deque()
        self._heard: dict[str, Heard] = {}
        self._number = 0

    def close(self) -> None:
        self.runner.close()

    def measure(self, names: tuple[str, ...], shapes: Shapes, rng: random.Random) -> dict[str, Figures]:
        """One repeat of each workload, by name."""
        found = {}
        if "prefill" in names:
            prompts = [self._prompt(rng, shapes.prefill_tokens) for _ in range(shapes.prefill_prompts)]
            found["prefill"] = prefill_figures([self.answer([prompt], 1)[0] for prompt in prompts])
        if "decode" in names:
            for streams in shapes.decode_concurrency:
                prompts = [self._prompt(rng, 2 * shapes.decode_prompt_words) for _ in range(streams)]
                found[f"decode_{streams}"] = decode_figures(self.answer(prompts, shapes.decode_tokens))
        return found

    def answer(self, prompts: list[tuple[int, ...]], max_tokens: int) -> list[Reply]:
        """Run these prompts together, greedily, to `max_tokens`. Raises BenchError when one ends otherwise."""
        sampling = SamplingParams(max_tokens=max_tokens, min_tokens=max_tokens, ignore_eos=True)
        sent = time.perf_counter()
        keys = [self._submit(prompt, sampling) for prompt in prompts]
        while self.engine.has_work or self._launched:
            self._step()
        return [self._reply(self._heard.pop(key), sent) for key in keys]

    def _prompt(self, rng: random.Random, tokens: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(self.runner.info.vocab_size), k=tokens))

    def _submit(self, prompt: tuple[int, ...], sampling: SamplingParams) -> str:
        self._number += 1
        key = f"bench-{self._number}"
        self._heard[key] = Heard()
        message = Submit(key=key, rid=key, ingress="bench", tenant="default", input_ids=prompt, sampling=sampling)
        self._hear(self.engine.handle(message, time.perf_counter()))
        return key

    def _step(self) -> None:
        self._hear(self.engine.expire(time.perf_counter()))
        plan = self.engine.plan(time.perf_counter())
        if plan is not None:
            self._launched.append((plan, self.runner.launch(plan)))
        if self._launched and (plan is None or len(self._launched) > self.engine.settings.depth):
            oldest, handle = self._launched.popleft()
            result = handle.wait()
            self._hear(self.engine.commit(oldest, result, time.perf_counter()))

    def _hear(self, outputs: list[Output]) -> None:
        now = time.perf_counter()
        for output in singly(outputs):
            if isinstance(output, Tokens):
                heard = self._heard[output.key]
                heard.ids.extend(output.ids)
                if heard.first is None:
                    heard.first = now
            elif isinstance(output, Finished):
                self._heard[output.key].end = output
                self._heard[output.key].ended = now

    def _reply(self, heard: Heard, sent: float) -> Reply:
        end = heard.end
        if end is None or end.outcome is Outcome.ABORT or heard.first is None:
            raise BenchError(f"a request did not run to its end: {end}")
        return Reply(
            sent=sent,
            first=heard.first,
            ended=heard.ended,
            prompt_tokens=end.prompt_tokens,
            completion_tokens=end.completion_tokens,
            cached_tokens=end.cached_tokens,
        )
