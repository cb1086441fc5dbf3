"""POST /v1/chat/completions: from bytes in to bytes out, with one ending whatever happens (rules E1, E6)."""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from actors.ingress.auth import caller_of
from actors.ingress.chat_answer import Head
from actors.ingress.core import Ingress, refused_by_template
from actors.ingress.errors import GENERIC_INTERNAL, ApiError, from_finished, is_answer
from actors.ingress.http_io import ClientGone, read_body, request_id_of, send_error, send_whole
from actors.ingress.keyring import Caller
from actors.ingress.lifeline import Lifeline
from actors.ingress.metrics import RequestMeter
from actors.ingress.openai_chat import ChatRequest, read_chat
from actors.ingress.routing import Call
from actors.ingress.running import Running
from actors.ingress.streams import ChatStream, extras_of, gather_text, worker_header
from actors.ingress.validate import parse_object
from actors.messages import Outcome, Reason, Stage

log = logging.getLogger(__name__)


class ChatEndpoint:
    """The ASGI callable of the route."""

    def __init__(self, ingress: Ingress) -> None:
        self._ingress = ingress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await ChatExchange(self._ingress, caller_of(scope), Headers(scope=scope), receive, send).run()


class ChatExchange:
    """One request and its answer."""

    def __init__(self, ingress: Ingress, caller: Caller, headers: Headers, receive: Receive, send: Send) -> None:
        self._ingress = ingress
        self._caller = caller
        self._headers = headers
        self._receive = receive
        self._send = send
        self._request_id = request_id_of(headers)
        self._answer_headers = {"x-request-id": self._request_id}
        self._meter: RequestMeter = ingress.metrics.request(ingress.clock)
        self._running: Running | None = None
        self._started = False

    async def run(self) -> None:
        try:
            await self._serve()
        except ApiError as error:
            self._meter.end(Outcome.ABORT, error.reason, error.stage)
            await self._refuse(error)
        except (ClientGone, asyncio.CancelledError) as gone:
            self._client_gone()
            if isinstance(gone, asyncio.CancelledError):
                raise
        except Exception:
            log.exception("request %s failed in the ingress", self._request_id)
            stage = self._running.stage if self._running is not None else Stage.INGRESS
            self._meter.end(Outcome.ABORT, Reason.INTERNAL, stage)
            await self._refuse(ApiError(Reason.INTERNAL, GENERIC_INTERNAL, stage=stage))

    async def _serve(self) -> None:
        config = self._ingress.config
        self._answer_headers.update(self._ingress.admit(self._caller, self._meter))
        body = await read_body(self._headers, self._receive, config.ingress.max_body_bytes)
        request = read_chat(parse_object(body), self._headers, text=self._ingress.text, config=config)
        life = Lifeline(
            self._receive,
            self._tracked_send,
            stall_timeout_s=config.ingress.stall_timeout_s,
            buffer_bytes=config.ingress.send_buffer_bytes,
        )
        async with life:
            await self._answer(request, life)
        if life.gone:
            self._client_gone()

    async def _answer(self, request: ChatRequest, life: Lifeline) -> None:
        call = await self._ingress.prepare(request, self._caller.tenant)
        running = self._ingress.router.start(call, self._meter, self._ingress.metrics.retries.inc)
        self._running = running
        try:
            if request.stream:
                await self._stream(request, running, life)
            else:
                await self._whole(request, running, life)
        except ApiError as error:
            raise _as_asked(error, request, call) from None
        finally:
            running.abandon()

    async def _stream(self, request: ChatRequest, running: Running, life: Lifeline) -> None:
        config = self._ingress.config.ingress
        stream = ChatStream(
            running,
            life,
            self._head(request),
            self._ingress.text.decoder(request.sampling.stop),
            headers=self._answer_headers,
            request_id=self._request_id,
            include_usage=request.include_usage,
            flush_s=config.flush_s,
            keepalive_after_s=config.keepalive_after_s,
        )
        await stream.run()

    async def _whole(self, request: ChatRequest, running: Running, life: Lifeline) -> None:
        text, end = await gather_text(running, self._ingress.text.decoder(request.sampling.stop))
        self._answer_headers.update(worker_header(running))
        if not is_answer(end):
            raise from_finished(end, text, running.delivered)
        body = self._head(request).answer(text, end, **extras_of(running, end))
        await send_whole(life.send, 200, body, self._answer_headers)

    def _head(self, request: ChatRequest) -> Head:
        return Head(request.rid, int(time.time()), self._ingress.text.name)

    async def _tracked_send(self, message: Message) -> None:
        self._started = True
        await self._send(message)

    async def _refuse(self, error: ApiError) -> None:
        """The error as a real HTTP status; a response that has begun can only be cut."""
        if not self._started:
            await send_error(self._send, error, self._request_id, self._answer_headers)

    def _client_gone(self) -> None:
        """Count the end, unless a worker has the request: then its account of the end is the one that counts."""
        if self._running is None:
            self._meter.end(Outcome.ABORT, Reason.CLIENT_DISCONNECT, Stage.INGRESS)


def _as_asked(error: ApiError, request: ChatRequest, call: Call) -> ApiError:
    """The error in terms of what this client wrote."""
    if error.reason is Reason.SESSION_EXISTS and call.turn_refused:
        return refused_by_template(call.turn_refused)
    if error.param == "max_tokens":
        error.param = request.max_tokens_field
    elif error.param == "grammar":
        error.param = request.grammar_field
    elif error.param is None and error.reason is Reason.TOO_LARGE:
        error.param = "messages"
    return error
