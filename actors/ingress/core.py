"""The ingress without HTTP: what all routes share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from actors import process
from actors.engine.scoring import MAX_NUMBERS, numbers_told
from actors.ingress.errors import ApiError, Invalid
from actors.ingress.generation import GenerationRequest
from actors.ingress.keyring import Caller, KeyRing
from actors.ingress.limits import Limiter
from actors.ingress.logprobs import PROMPT_FIELD
from actors.ingress.metrics import Metrics, RequestMeter
from actors.ingress.prompts import Continues, Prompt, PromptSource, total_work
from actors.ingress.replying import held_to
from actors.ingress.routing import Call, Router, SessionUse
from actors.ingress.text import TextModel
from actors.messages import Grammar, Reason, Submit
from actors.ports import PoolPort
from configs import RemoraConfig

T = TypeVar("T")

DEFAULT_TENANT = "default"
INLINE_RENDER_WORK = 4096
"""Up to this many bytes prompts are tokenised on the event loop: handing them to a thread would cost more."""
INLINE_BODY_BYTES = 128 * 2**10
"""And bodies are read there. A body of 5 MB takes 40 ms, and as many as came at once would be read without a pause."""
CROWD, MAX_STRETCH = 16, 2.0
"""From so many requests on, tokens gather for longer before they are sent, up to so many times as long."""


class Ingress:
    """One ingress replica: its router, metrics and tokeniser threads. Stateless but for caches (any replica can
    serve any turn)."""

    def __init__(
        self,
        pool: PoolPort,
        text: TextModel,
        config: RemoraConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        deployed_at: int | None = None,
    ) -> None:
        """`deployed_at`: Unix time that models are listed with, by all replicas the same. None: now."""
        self.text = text
        self.config = config
        self.clock = clock
        self.metrics = Metrics()
        self.keys = KeyRing(config.auth, config.tenants, self.metrics, clock)
        self.limiter = Limiter(self.keys.limits, self.metrics, clock)
        self.router = Router(
            pool, cluster=config.cluster, timeouts=config.timeouts, max_sessions=self.max_sessions, clock=clock
        )
        self.deployed_at = int(time.time()) if deployed_at is None else deployed_at
        self._tokenisers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenise")
        self._readers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read")

    @property
    def pool(self) -> PoolPort:
        return self.router.pool

    def max_sessions(self, tenant: str) -> int | None:
        """How many sessions this tenant may have open; None: as many as any."""
        return self.keys.limits(tenant).sessions or None

    def admit(self, caller: Caller, meter: RequestMeter) -> dict[str, str]:
        """Let in a request that generates: the first thing to do with one. What it uses is given back, and charged,
        when its meter ends. Returns headers for the answer. Raises ApiError (429) over a limit."""
        admission = self.limiter.admit(caller.tenant)
        meter.on_end = admission.end
        return admission.headers

    async def prepare(self, request: GenerationRequest, tenant: str) -> list[Call]:
        """Tokenise: a call for each reply. Raises ApiError as `render` does."""
        rendered = await self.render(request.prompts, _continues(request.session))
        affinity = f"{tenant}\n{request.affinity}" if request.affinity is not None else None
        resume = request.resume or not request.stream  # Of a whole answer nothing is shown before the end.
        weight = self.keys.weight(tenant)
        calls = []
        grammar: Grammar | None = None
        for index in range(request.replies):
            prompt_of = rendered[index // request.choices]
            submit = _submit(request, index, tenant, weight, prompt_of.ids)
            prompt = request.prompts[index // request.choices]
            if index % request.choices == 0:
                grammar = held_to(prompt, self.text, submit.input_ids, submit.grammar, request.grammar_field)
            submit = submit if grammar is submit.grammar else replace(submit, grammar=grammar)
            calls.append(Call(submit, request.session, affinity, prompt_of.turn_refused, resume))
        _check_scores(calls, request.renamed.get(PROMPT_FIELD, PROMPT_FIELD))
        return calls

    def flush_s(self) -> float:
        """How long the tokens of a stream gather before they are sent. What a piece costs hardly follows from what is
        in it, so that many streams at once have fewer."""
        crowd = len(self.router.running) / CROWD
        return self.config.ingress.flush_s * min(MAX_STRETCH, max(1.0, crowd))

    async def render(self, prompts: Sequence[PromptSource], continues: Continues | None = None) -> list[Prompt]:
        """Each prompt's ids. Raises ApiError for what the template refuses and for what cannot fit."""
        most = self.text.max_context * self.text.max_token_bytes
        for prompt in prompts:
            if prompt.size_bytes > most:
                message = (
                    f"This is {prompt.size_bytes} bytes of text; a context of {self.text.max_context} tokens never "
                    "holds it."
                )
                raise ApiError(Reason.TOO_LARGE, message, param=prompt.field)

        def work() -> list[Prompt]:
            return [prompt.render(self.text, continues) for prompt in prompts]

        try:
            if total_work(prompts) <= INLINE_RENDER_WORK:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self._tokenisers, work)
        except ValueError as error:
            raise refused_by_template(str(error)) from error

    async def reading(self, size: int, read: Callable[[], T]) -> T:
        """What `read` makes of a body of so many bytes: beside the event loop, one by one, if that takes long."""
        if size <= INLINE_BODY_BYTES:
            return read()
        return await asyncio.get_running_loop().run_in_executor(self._readers, read)

    async def close(self) -> None:
        """End what runs with `Reason.SHUTDOWN`. Nothing can be started afterwards."""
        await self.router.stop()
        for threads in (self._tokenisers, self._readers):
            threads.shutdown(wait=False, cancel_futures=True)

    def stats(self) -> dict[str, object]:
        """The `ingress` part of /v1/stats."""
        return {
            "id": self.router.ingress_id,
            "model": self.text.name,
            "open_requests": self.metrics.open_requests,
            "running": len(self.router.running),
            "lines": self.router.channels.open_lines(),
            "cached_placements": self.router.cached_placements,
            "process": process.figures([asyncio.get_running_loop()]),
        }


def _check_scores(calls: Sequence[Call], field: str) -> None:
    """The log probabilities of all prompts of an answer together. Raises ApiError."""
    numbers = sum(max(0, numbers_told(len(call.submit.input_ids), call.submit.sampling)) for call in calls)
    if numbers > MAX_NUMBERS:
        text = f"{numbers} log probabilities are asked for of these prompts; at most {MAX_NUMBERS} are told at once."
        raise Invalid(field, text)


def _continues(use: SessionUse | None) -> Continues | None:
    """How a turn meets its session; None without one."""
    if use is None:
        return None
    named = not use.from_head and use.parent is not None
    return Continues(use.from_head, fresh=not named and (use.create or not use.from_head))


def refused_by_template(why: str) -> ApiError:
    return Invalid("messages", f"The model's chat template refuses these messages: {why}")


def _submit(request: GenerationRequest, index: int, tenant: str, weight: float, ids: dict[str, Any]) -> Submit:
    rid, settings = request.part(index)
    return Submit(
        key="",
        ingress="",
        rid=rid,
        batch="" if rid == request.rid else request.rid,
        tenant=tenant,
        sampling=settings.sampling,
        priority=request.priority,
        cache_salt=request.cache_salt,
        digest=request.digest,
        waiting_timeout_s=request.waiting_timeout_s,
        running_timeout_s=request.running_timeout_s,
        deadline_s=request.deadline_s,
        idempotent=request.named,
        grammar=settings.grammar,
        weight=weight,
        join=request.join,
        **ids,
    )
