"""The ingress without HTTP: what all routes share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from actors import process
from actors.ingress.chat_messages import text_bytes
from actors.ingress.errors import ApiError, Invalid
from actors.ingress.keyring import Caller, KeyRing
from actors.ingress.limits import Limiter
from actors.ingress.metrics import Metrics, RequestMeter
from actors.ingress.openai_chat import ChatRequest
from actors.ingress.routing import Call, Router
from actors.ingress.text import TextModel
from actors.messages import Reason, Submit
from actors.ports import PoolPort
from configs.schema import RemoraConfig

DEFAULT_TENANT = "default"
INLINE_RENDER_BYTES = 4096
"""Texts up to this size are tokenised on the event loop: handing them to a thread would cost more."""


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
    ) -> None:
        self.text = text
        self.config = config
        self.clock = clock
        self.metrics = Metrics()
        self.keys = KeyRing(config.auth, config.tenants, self.metrics, clock)
        self.limiter = Limiter(self.keys.limits, self.metrics, clock)
        self.router = Router(
            pool, cluster=config.cluster, timeouts=config.timeouts, max_sessions=self.max_sessions, clock=clock
        )
        self.started_at = int(time.time())
        self._tokenisers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenise")

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

    async def prepare(self, request: ChatRequest, tenant: str) -> Call:
        """Tokenise. Raises ApiError for what the template refuses and for what cannot fit."""
        size = text_bytes(request.messages)
        most = self.text.max_context * self.text.max_token_bytes
        if size > most:
            message = (
                f"The messages are {size} bytes of text; a context of {self.text.max_context} tokens never holds it."
            )
            raise ApiError(Reason.TOO_LARGE, message, param="messages")
        try:
            if size <= INLINE_RENDER_BYTES:
                prompt = self._render(request)
            else:
                prompt = await asyncio.get_running_loop().run_in_executor(self._tokenisers, self._render, request)
        except ValueError as error:
            raise refused_by_template(str(error)) from error
        affinity = f"{tenant}\n{request.affinity}" if request.affinity is not None else None
        submit = _submit(request, tenant, self.keys.weight(tenant), prompt.ids)
        resume = request.resume or not request.stream  # Of a whole answer nothing is shown before the end.
        return Call(submit, request.session, affinity, prompt.turn_refused, resume)

    async def close(self) -> None:
        """End what runs with `Reason.SHUTDOWN`. Nothing can be started afterwards."""
        await self.router.stop()
        self._tokenisers.shutdown(wait=False, cancel_futures=True)

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

    def _render(self, request: ChatRequest) -> Prompt:
        """For a turn both forms, because only the worker knows whether there is history to append to. Raises
        ValueError when the template refuses the messages as a beginning, unless they go on from a named turn."""
        template, use = self.text.template, request.session
        if use is not None and not use.from_head and use.parent is not None:
            turn = template.render_turn(request.messages)
            return Prompt({"input_ids": tuple(turn.input_ids), "close_ids": tuple(turn.close_ids)})
        root = tuple(template.render_root(request.messages))
        if use is None:
            return Prompt({"input_ids": root})
        if use.create or not use.from_head:
            return Prompt({"input_ids": root, "root_ids": root})
        try:
            turn = template.render_turn(request.messages)
        except ValueError as error:
            return Prompt({"input_ids": root, "root_ids": root}, turn_refused=str(error))
        return Prompt({"input_ids": tuple(turn.input_ids), "root_ids": root, "close_ids": tuple(turn.close_ids)})


@dataclass(frozen=True, slots=True)
class Prompt:
    """The id fields of a `Submit`. `turn_refused`: these messages can begin a conversation but not go on with one
    (a system message, in most templates), and why."""

    ids: dict[str, tuple[int, ...]]
    turn_refused: str = ""


def refused_by_template(why: str) -> ApiError:
    return Invalid("messages", f"The model's chat template refuses these messages: {why}")


def _submit(request: ChatRequest, tenant: str, weight: float, ids: dict[str, Any]) -> Submit:
    return Submit(
        key="",
        ingress="",
        rid=request.rid,
        tenant=tenant,
        sampling=request.sampling,
        priority=request.priority,
        cache_salt=request.cache_salt,
        digest=request.digest,
        waiting_timeout_s=request.waiting_timeout_s,
        running_timeout_s=request.running_timeout_s,
        deadline_s=request.deadline_s,
        idempotent=request.named,
        grammar=request.grammar,
        weight=weight,
        join=request.join,
        **ids,
    )
