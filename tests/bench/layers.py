"""The same requests to one engine at three depths: stepped in this process, through the worker's actor, over HTTP."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from typing import Any, Protocol

from actors.ingress.channel import Line, Pump
from actors.messages import Outcome, SamplingParams, Submit
from actors.worker.actor import ActorWorkerPort
from tests.bench.client import ChatClient
from tests.bench.figures import BenchError, Reply
from tests.bench.in_process import InProcess
from tests.bench.texts import Sizing, fresh_prompt

PATIENCE_S = 60.0


class Layer(Protocol):
    """Answers `streams` prompts of `prompt_tokens` random tokens, all sent at once, greedily, with exactly `max_tokens`
    tokens each. Raises BenchError."""

    name: str

    async def answer(self, rng: random.Random, streams: int, prompt_tokens: int, max_tokens: int) -> list[Reply]: ...


class Bare:
    """Engine and runner in this process: nothing is sent anywhere. It holds the event loop while it runs."""

    name = "in process"

    def __init__(self, engine: InProcess) -> None:
        self._engine = engine

    async def answer(self, rng: random.Random, streams: int, prompt_tokens: int, max_tokens: int) -> list[Reply]:
        vocabulary = range(self._engine.runner.info.vocab_size)
        return self._engine.answer(
            [tuple(rng.choices(vocabulary, k=prompt_tokens)) for _ in range(streams)], max_tokens
        )


class Actor:
    """A worker actor of a running server, spoken to as an ingress does, but by this process. `close` it."""

    name = "actor"

    def __init__(self, worker_id: str, handle: Any, vocab_size: int) -> None:
        self._ingress = f"bench-{secrets.token_hex(4)}"
        self._vocabulary = range(vocab_size)
        self._port = ActorWorkerPort(worker_id, handle)
        self._pump = Pump(worker_id, self._port, self._ingress, PATIENCE_S)

    async def close(self) -> None:
        await self._pump.stop()

    async def answer(self, rng: random.Random, streams: int, prompt_tokens: int, max_tokens: int) -> list[Reply]:
        prompts = [tuple(rng.choices(self._vocabulary, k=prompt_tokens)) for _ in range(streams)]
        return list(await asyncio.gather(*(self._one(prompt, max_tokens) for prompt in prompts)))

    async def _one(self, prompt: tuple[int, ...], max_tokens: int) -> Reply:
        key = secrets.token_hex(8)
        sampling = SamplingParams(max_tokens=max_tokens, min_tokens=max_tokens, ignore_eos=True)
        sent = time.perf_counter()
        line = self._pump.open_line(key)
        await self._port.submit(
            Submit(key=key, rid=key, ingress=self._ingress, tenant="default", input_ids=prompt, sampling=sampling)
        )
        return await _heard(line, sent)


async def _heard(line: Line, sent: float) -> Reply:
    first = None
    while True:
        batch = await line.take(timeout_s=PATIENCE_S)
        now = time.perf_counter()
        if batch.ids and first is None:
            first = now
        if batch.end is not None:
            break
        if not batch.ids:
            raise BenchError(f"{line.worker_id} said nothing for {PATIENCE_S:.0f} s")
    end = batch.end
    if end.outcome is Outcome.ABORT or first is None:
        raise BenchError(f"a request did not run to its end: {end}")
    return Reply(
        sent=sent,
        first=first,
        ended=now,
        prompt_tokens=end.prompt_tokens,
        completion_tokens=end.completion_tokens,
        cached_tokens=end.cached_tokens,
    )


class Http:
    """The whole product: proxy, ingress, templates, text."""

    name = "http"

    def __init__(self, client: ChatClient, sizing: Sizing) -> None:
        self._client = client
        self._sizing = sizing

    async def answer(self, rng: random.Random, streams: int, prompt_tokens: int, max_tokens: int) -> list[Reply]:
        words = self._sizing.words_of_prompt(prompt_tokens)
        prompts = [fresh_prompt(rng, words) for _ in range(streams)]
        return list(await asyncio.gather(*(self._client.chat(prompt, max_tokens) for prompt in prompts)))
