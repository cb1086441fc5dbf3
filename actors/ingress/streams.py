"""Events of one request → an SSE stream (rules E3, A8, I2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.types import Send

from actors.ingress import chat_answer
from actors.ingress.channel import Batch
from actors.ingress.chat_answer import Head
from actors.ingress.errors import ApiError, from_finished, is_answer
from actors.ingress.http_io import send_start
from actors.ingress.lifeline import Lifeline
from actors.ingress.running import Running
from actors.ingress.text import Decoder
from actors.messages import Finished

CONTENT_TYPE = "text/event-stream; charset=utf-8"
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class SseWriter:
    """Starts the response with the first piece; until then the status is still open."""

    def __init__(self, send: Send, headers: Mapping[str, str]) -> None:
        self._send = send
        self._headers = headers
        self.started = False

    async def write(self, data: bytes, extra_headers: Mapping[str, str], *, last: bool = False) -> None:
        if not self.started:
            self.started = True
            await send_start(self._send, 200, CONTENT_TYPE, {**_STREAM_HEADERS, **self._headers, **extra_headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})


class ChatStream:
    """One streamed chat answer. The first token goes out at once, later ones at most every `flush_s`."""

    def __init__(
        self,
        running: Running,
        life: Lifeline,
        head: Head,
        decoder: Decoder,
        *,
        headers: Mapping[str, str],
        request_id: str,
        include_usage: bool,
        flush_s: float,
        keepalive_after_s: float,
    ) -> None:
        self._running = running
        self._life = life
        self._head = head
        self._decoder = decoder
        self._request_id = request_id
        self._include_usage = include_usage
        self._flush_s = flush_s
        self._keepalive_s = keepalive_after_s or None
        self._writer = SseWriter(life.send, headers)
        self._text: list[str] = []
        self._said_role = False

    async def run(self) -> None:
        """Raises ApiError only while a real HTTP status can still be sent."""
        hold_s = 0.0
        while True:
            try:
                batch = await self._running.take(hold_s=hold_s, timeout_s=self._keepalive_s)
            except ApiError as error:
                await self._fail(error, b"")
                return
            if batch.end is not None:
                await self._finish(batch, batch.end)
                return
            if batch.ids:
                hold_s = self._flush_s
                self._running.on_backlog(self._life.backlog)
                await self._write(self._content(self._decoder.push(batch.ids)))
            else:
                await self._write(chat_answer.KEEP_ALIVE)

    async def _finish(self, batch: Batch, end: Finished) -> None:
        text = (self._decoder.push(batch.ids) if batch.ids else "") + self._decoder.finish(end.matched)
        if not is_answer(end):
            data = self._content(text) if batch.ids or self._said_role else b""
            delivered = self._running.delivered
            await self._fail(from_finished(end, "".join(self._text), delivered), data)
            return
        data = self._content(text)
        data += self._head.chunk({}, chat_answer.finish_reason(end), **extras_of(self._running, end))
        if self._include_usage:
            data += self._head.chunk(None, usage=chat_answer.usage(end))
        await self._write(data + chat_answer.DONE, last=True)

    async def _fail(self, error: ApiError, text: bytes) -> None:
        """An error event, or, when nothing was sent or made yet, the error itself."""
        if not self._writer.started and not text:
            raise error
        event = chat_answer.error_event(error, self._request_id)
        await self._write(text + event + chat_answer.DONE, last=True)

    def _content(self, text: str) -> bytes:
        data = b""
        if not self._said_role:
            self._said_role = True
            data = self._head.chunk({"role": "assistant", "content": ""})
        if text:
            self._text.append(text)
            data += self._head.chunk({"content": text})
        return data

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        if data:
            await self._writer.write(data, worker_header(self._running), last=last)


async def gather_text(running: Running, decoder: Decoder) -> tuple[str, Finished]:
    """The whole text and the end, for a unary answer. Nobody sees the pieces, so they are taken in large ones."""
    parts: list[str] = []
    hold_s = 0.0
    while True:
        batch = await running.take(hold_s=hold_s)
        hold_s = 0.25
        if batch.ids:
            parts.append(decoder.push(batch.ids))
        if batch.end is not None:
            parts.append(decoder.finish(batch.end.matched))
            return "".join(parts), batch.end


def worker_header(running: Running) -> dict[str, str]:
    return {"x-remora-worker": running.worker_id} if running.worker_id else {}


def extras_of(running: Running, end: Finished) -> dict[str, Any]:
    """Fields of our own in an answer: `session` for turns, `replayed` for stored answers (rule T2)."""
    use = running.call.session
    extras: dict[str, Any] = {"replayed": True} if end.replayed else {}
    if use is not None:
        extras["session"] = {"id": use.session_id, "turn": end.turn, "worker": running.worker_id}
    return extras
