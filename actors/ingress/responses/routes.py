"""The routes of /v1/responses: what can be done with a response, running or over, from any replica."""

from __future__ import annotations

import asyncio
import logging

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from actors.ingress.aborts_api import abort_everywhere
from actors.ingress.auth import caller_of
from actors.ingress.channel import spawn
from actors.ingress.core import Ingress
from actors.ingress.errors import ApiError, Invalid
from actors.ingress.exchange import Exchange
from actors.ingress.http_io import request_id_of, send_json
from actors.ingress.lifeline import Lifeline
from actors.ingress.openai_answers import KEEP_ALIVE, error_event
from actors.ingress.plain_routes import JsonAnswer, plain
from actors.ingress.responses.body import check_include
from actors.ingress.responses.call import ResponseCall, Tools
from actors.ingress.responses.conversations import Conversations
from actors.ingress.responses.ids import Kind, ResponseId
from actors.ingress.responses.live import Book, Link, Live, follow, set_within
from actors.ingress.responses.paging import listed
from actors.ingress.responses.shelf import NotKept, Shelf
from actors.ingress.responses.told import Told
from actors.ingress.responses.voice import told_again
from actors.ingress.responses.wording import NOT_STORED, unknown_response
from actors.ingress.streams import SseWriter
from actors.messages import Abort, Reason, Stage
from actors.records import SessionUnknown, StoreError

log = logging.getLogger(__name__)

CANCEL_WAIT_S = 5.0
"""How long a cancelled response may take to end, before the answer says that it runs still."""
LOOK_S = 0.5
"""How often a response that runs in another replica is looked for."""
CLOSE_S = 3.0


class Responses:
    """All of it, for one replica."""

    def __init__(self, ingress: Ingress) -> None:
        shelf = Shelf(ingress.pool, ingress.config)
        self.conversations = Conversations(ingress.pool, ingress.router, shelf)
        self.tools = Tools(ingress, shelf, self.conversations, Book())
        self._ingress = ingress

    async def close(self) -> None:
        """After the ingress: what ran in the background has been ended, and says so to the store."""
        await self.tools.book.close(CLOSE_S)

    def create(self) -> CreateEndpoint:
        return CreateEndpoint(self.tools)

    def retrieve(self) -> RetrieveEndpoint:
        return RetrieveEndpoint(self)

    async def get(self, ingress: Ingress, request: Request) -> Response:
        """GET /v1/responses/{id}: as it is now."""
        told, _ = await self.look(request)
        return JsonAnswer(told.object())

    async def cancel(self, ingress: Ingress, request: Request) -> Response:
        """POST …/cancel: the turn ends and leaves no trace in the history. One that is over stays as it is (A4)."""
        told, live = await self.look(request)
        if told.over:
            return JsonAnswer(told.object())
        tenant = _tenant(request)
        await abort_everywhere(ingress, Abort(tenant=tenant, rids=(told.id,), reason=Reason.CLIENT_ABORT))
        if live is not None:
            await set_within(live.over, CANCEL_WAIT_S)
            return JsonAnswer(live.told.object())
        give_up_at = ingress.clock() + CANCEL_WAIT_S
        while not told.over and ingress.clock() < give_up_at:
            await asyncio.sleep(LOOK_S / 10)
            told, _ = await self.look(request)
        return JsonAnswer(told.object())

    async def delete(self, ingress: Ingress, request: Request) -> Response:
        """DELETE /v1/responses/{id}: it is not told any more, and cannot be gone on from. One that runs is cancelled.
        Its turn stays in the history of those that went on from it; where nobody did, its session is closed."""
        told, _ = await self.look(request)
        tenant = _tenant(request)
        if not told.over:
            await abort_everywhere(ingress, Abort(tenant=tenant, rids=(told.id,), reason=Reason.CLIENT_ABORT))
        await self.tools.shelf.drop(tenant, told.id)
        named = ResponseId.parse(told.id)
        if named is not None and named.kind is Kind.CHAIN:
            await self._close_if_alone(tenant, named.session_id)
        return JsonAnswer({"id": told.id, "object": "response", "deleted": True})

    async def input_items(self, ingress: Ingress, request: Request) -> Response:
        """GET …/input_items: what this response itself was asked with; what was before it is its predecessors'."""
        told, _ = await self.look(request)
        if not told.input_kept:
            text = "The input items of this response were too many to be kept."
            raise Invalid("response_id", text, code="input_items_not_kept", status=404)
        return JsonAnswer(listed(told.items, request.query_params))

    async def look(self, request: Request) -> tuple[Told, Live | None]:
        """The response that a path names, and the running one if it runs here. Raises ApiError (404), StoreError."""
        response_id, tenant = request.path_params["response_id"], _tenant(request)
        named = ResponseId.parse(response_id)
        if named is None:
            raise unknown_response(response_id)
        live = self.tools.book.find(tenant, response_id)
        if live is not None:
            return live.told, live
        try:
            found = await self.tools.shelf.find(tenant, response_id)
        except NotKept as why:
            reason = NOT_STORED if named.kind is Kind.STATELESS else str(why)
            raise unknown_response(response_id, reason) from None
        if found.lost and not found.told.over:
            text = "The server that ran this response was lost. Please send it again."
            found.told.fail(ApiError(Reason.WORKER_LOST, text, stage=Stage.ROUTING), "")
        return found.told, None

    async def _close_if_alone(self, tenant: str, session_id: str) -> None:
        try:
            if (await self._ingress.pool.get_session(tenant, session_id)).turns > 1:
                return
            self._ingress.router.forget(tenant, session_id)
            await self._ingress.pool.close_session(tenant, session_id, abort_running=True)
        except SessionUnknown:
            log.debug("session %a was gone before its response", session_id)


class CreateEndpoint:
    """POST /v1/responses. In the background, the exchange goes on in a task of its own when its client has its
    answer."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tools, caller, headers = self._tools, caller_of(scope), Headers(scope=scope)
        link = Link(receive, send)
        call = ResponseCall(tools, caller.tenant, link)
        exchange = Exchange(tools.ingress, call, caller, headers, link.receive, link.send, keeping=call)
        work = spawn(_worked(exchange, call))
        accepted = asyncio.ensure_future(link.accepted.wait())
        try:
            await asyncio.wait({work, accepted}, return_when=asyncio.FIRST_COMPLETED)
            if not link.is_cut:
                await work
        except asyncio.CancelledError:
            if not link.is_cut:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
            raise
        finally:
            accepted.cancel()
            if link.is_cut:
                tools.book.adopt(work)
        if link.is_cut:
            await self._answer(call, link, receive, send, headers)

    async def _answer(self, call: ResponseCall, link: Link, receive: Receive, send: Send, headers: Headers) -> None:
        """Of a response that runs in the background, or was refused."""
        live = call.live
        if live is None:
            await link.refuse()
            return
        told_with = {"x-request-id": request_id_of(headers)}
        if call.asked.stream:
            await _followed(self._tools.ingress, live, receive, send, told_with, -1)
        else:
            await send_json(send, 200, live.told.object("queued", []), told_with)


class RetrieveEndpoint:
    """GET /v1/responses/{id}, also as a stream."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        answer = await plain(self._responses.tools.ingress, self._look)(request)
        found = getattr(answer, "found", None)
        if found is None:
            await answer(scope, receive, send)
            return
        told, live, after = found
        headers = {"x-request-id": request_id_of(request.headers)}
        ingress = self._responses.tools.ingress
        if live is not None:
            await _followed(ingress, live, receive, send, headers, after)
        else:
            await self._from_store(request, told, send, headers, after)

    async def _look(self, ingress: Ingress, request: Request) -> Response:
        query = request.query_params
        check_include(query.getlist("include") + query.getlist("include[]"))
        after, streams = _after(query.get("starting_after")), _flag(query.get("stream"), "stream")
        if not streams:
            return await self._responses.get(ingress, request)
        told, live = await self._responses.look(request)
        return _Stream(told, live, after)

    async def _from_store(self, request: Request, told: Told, send: Send, headers: dict[str, str], after: int) -> None:
        """One that is over is told as it was, event by event. One that runs in another replica is told when it is
        over: only that replica knows what it has said so far."""
        ingress = self._responses.tools.ingress
        async with _lifeline(ingress, request.receive, send) as life:
            writer = SseWriter(life.send, headers)
            keepalive_s, quiet_s = ingress.config.ingress.keepalive_after_s, 0.0
            while not told.over:
                await asyncio.sleep(LOOK_S)
                quiet_s += LOOK_S
                if keepalive_s and quiet_s >= keepalive_s:
                    await writer.write(KEEP_ALIVE, {})
                    quiet_s = 0.0
                try:
                    told, _ = await self._responses.look(request)
                except StoreError as error:
                    log.warning("a response cannot be looked for: %s", error)
                except ApiError as error:  # It was deleted.
                    await writer.write(error_event(error, headers["x-request-id"]), {}, last=True)
                    return
            await writer.write(told_again(told, after), {}, last=True)


class _Stream(Response):
    """Says that the answer is to be streamed."""

    def __init__(self, told: Told, live: Live | None, after: int) -> None:
        super().__init__()
        self.found = (told, live, after)


async def _worked(exchange: Exchange, call: ResponseCall) -> None:
    try:
        await exchange.run()
    finally:
        if not call.kept:
            call.over()


async def _followed(
    ingress: Ingress, live: Live, receive: Receive, send: Send, headers: dict[str, str], after: int
) -> None:
    async with _lifeline(ingress, receive, send) as life:
        keepalive_s = ingress.config.ingress.keepalive_after_s or None
        await follow(live, life, headers, after=after, keepalive_s=keepalive_s)


def _lifeline(ingress: Ingress, receive: Receive, send: Send) -> Lifeline:
    edge = ingress.config.ingress
    return Lifeline(receive, send, stall_timeout_s=edge.stall_timeout_s, buffer_bytes=edge.send_buffer_bytes)


def _tenant(request: Request) -> str:
    return caller_of(request.scope).tenant


def _after(text: str | None) -> int:
    if text is None:
        return -1
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise Invalid("starting_after", "`starting_after` must be the number of an event.")
    return int(text)


def _flag(text: str | None, name: str) -> bool:
    if text not in (None, "true", "false", "True", "False", "1", "0"):
        raise Invalid(name, f"`{name}` must be true or false.")
    return text in ("true", "True", "1")
