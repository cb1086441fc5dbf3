"""A route that generates: from bytes in to bytes out, with one ending whatever happens (rules E1, E6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from actors.ingress.auth import caller_of
from actors.ingress.choices import Choice, whole
from actors.ingress.core import Ingress, refused_by_template
from actors.ingress.decoding import decoder_for
from actors.ingress.errors import GENERIC_INTERNAL, ApiError
from actors.ingress.generation import GenerationRequest
from actors.ingress.http_io import ClientGone, read_body, request_id_of, send_json, send_whole
from actors.ingress.keyring import Caller
from actors.ingress.lifeline import Lifeline
from actors.ingress.logprobs import entry
from actors.ingress.metrics import RequestMeter
from actors.ingress.part_meters import part_meters
from actors.ingress.replying import reading_of
from actors.ingress.routing import Call
from actors.ingress.running import Running
from actors.ingress.streams import AnswerStream, worker_header
from actors.ingress.validate import parse_object
from actors.ingress.voice import Api, Keeping, Voice, written
from actors.messages import Outcome, Reason, Stage

log = logging.getLogger(__name__)


class GenerateEndpoint:
    """The ASGI callable of a route. `has_body` False: requests carry none, and are read as an empty object."""

    def __init__(self, ingress: Ingress, api: Api, *, has_body: bool = True) -> None:
        self._ingress = ingress
        self._api = api
        self._has_body = has_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(self._ingress, self._api, caller_of(scope), Headers(scope=scope), receive, send)
        exchange.has_body = self._has_body
        await exchange.run()


class Exchange:
    """One request and its answer."""

    def __init__(
        self,
        ingress: Ingress,
        api: Api,
        caller: Caller,
        headers: Headers,
        receive: Receive,
        send: Send,
        keeping: Keeping | None = None,
    ) -> None:
        self._ingress = ingress
        self._api = api
        self._keeping = keeping
        self._caller = caller
        self._headers = headers
        self._receive = receive
        self._send = send
        self._request_id = request_id_of(headers)
        self._answer_headers = {"x-request-id": self._request_id}
        self._meter: RequestMeter = ingress.metrics.request(ingress.clock)
        self._running: list[Running] = []
        self._started = False
        self.has_body = True

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
            stage = self._running[0].stage if self._running else Stage.INGRESS
            self._meter.end(Outcome.ABORT, Reason.INTERNAL, stage)
            await self._refuse(ApiError(Reason.INTERNAL, GENERIC_INTERNAL, stage=stage))

    async def _serve(self) -> None:
        ingress, config = self._ingress, self._ingress.config
        self._answer_headers.update(ingress.admit(self._caller, self._meter))
        limits = config.ingress
        body = await read_body(self._headers, self._receive, limits.max_body_bytes, limits.body_timeout_s)
        request = await ingress.reading(len(body), lambda: self._read(body))
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

    def _read(self, body: bytes) -> GenerationRequest:
        tree = parse_object(body) if self.has_body else {}
        return self._api.read(tree, self._headers, self._ingress.text, self._ingress.config)

    async def _answer(self, request: GenerationRequest, life: Lifeline) -> None:
        if self._keeping is not None:
            request = await self._keeping.arrange(request)
        calls = _traced(await self._ingress.prepare(request, self._caller.tenant), self._headers)
        voice = self._api.voice(request, self._ingress.text)
        try:
            choices = self._start(request, calls)
            await self._begun(choices)
            if request.stream:
                await self._stream(choices, voice, life, lambda error: _as_asked(error, request, calls[0]))
            else:
                await self._whole(choices, voice, life)
        except ApiError as error:
            raise _as_asked(error, request, calls[0]) from None
        finally:
            for running in self._running:
                running.abandon()

    async def _begun(self, choices: list[Choice]) -> None:
        """Raises ApiError, for a request that no worker has yet: this is its end."""
        if self._keeping is None:
            return
        try:
            await self._keeping.begun(choices)
        except ApiError as error:
            self._meter.end(Outcome.ABORT, error.reason, error.stage)
            raise

    def _start(self, request: GenerationRequest, calls: list[Call]) -> list[Choice]:
        """Send every reply on its way."""
        choices = []
        for index, (call, meter) in enumerate(zip(calls, part_meters(self._meter, len(calls)), strict=True)):
            running = self._ingress.router.start(call, meter, self._ingress.metrics.retries.inc)
            self._running.append(running)
            _, settings = request.part(index)
            text, prompt = self._ingress.text, index // request.choices
            reading = reading_of(request.prompts[prompt], text, call.submit.input_ids)
            decoder = decoder_for(text, settings.sampling.stop, replace(settings.decoding, marks=reading.marks))
            tell = partial(entry, token_bytes=text.token_bytes) if request.in_parts else None
            choices.append(Choice(index, running, decoder, reading.reader, prompt=prompt, tell=tell))
        return choices

    async def _stream(
        self, choices: list[Choice], voice: Voice, life: Lifeline, as_asked: Callable[[ApiError], ApiError]
    ) -> None:
        config = self._ingress.config.ingress
        stream = AnswerStream(
            choices,
            life,
            voice,
            headers=self._answer_headers,
            request_id=self._request_id,
            flush_s=self._ingress.flush_s,
            keepalive_after_s=config.keepalive_after_s,
            keeping=self._keeping,
            as_asked=as_asked,
        )
        await stream.run()

    async def _whole(self, choices: list[Choice], voice: Voice, life: Lifeline) -> None:
        await whole(choices)
        self._answer_headers.update(worker_header(choices))
        for choice in choices:
            if (error := choice.failure) is not None:
                raise error
        if self._keeping is not None:
            await self._keeping.ended(choices, None, self._request_id)
        numbers = sum(choice.numbers(len(choice.scores) + len(choice.logprobs)) for choice in choices)
        body = await written(numbers, lambda: voice.whole(choices))
        await send_whole(life.send, 200, body, self._answer_headers)

    async def _tracked_send(self, message: Message) -> None:
        self._started = True
        await self._send(message)

    async def _refuse(self, error: ApiError) -> None:
        """The error as a real HTTP status; a response that has begun can only be cut."""
        if not self._started:
            body = self._api.refusal(error, self._request_id)
            await send_json(self._send, error.status, body, {**self._answer_headers, **error.headers()})

    def _client_gone(self) -> None:
        """Count the end, unless a worker has the request: then its account of the end is the one that counts."""
        if not self._running:
            self._meter.end(Outcome.ABORT, Reason.CLIENT_DISCONNECT, Stage.INGRESS)


def _traced(calls: list[Call], headers: Headers) -> list[Call]:
    """The same, told of the trace that they are part of, if they are."""
    trace = headers.get("traceparent", "")
    return [replace(call, submit=replace(call.submit, trace=trace)) for call in calls] if trace else calls


def _as_asked(error: ApiError, request: GenerationRequest, call: Call) -> ApiError:
    """The error in terms of what this client wrote."""
    if error.reason is Reason.SESSION_EXISTS and call.turn_refused:
        return refused_by_template(call.turn_refused)
    if request.own and error.param is not None:
        error.param = request.own[error.prompt].renamed.get(error.param, error.param)
    if error.param == "max_tokens":
        error.param = request.max_tokens_field
    elif error.param == "grammar":
        error.param = request.grammar_field
    elif error.param == "messages" or (error.param is None and error.reason is Reason.TOO_LARGE):
        error.param = request.prompts[error.prompt].field
    if error.param is not None:
        error.param = request.renamed.get(error.param, error.param)
    return error
