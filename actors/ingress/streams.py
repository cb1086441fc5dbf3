"""Events of a request → an SSE stream (rules E3, A8, I2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from starlette.types import Send

from actors.ingress.channel import Batch
from actors.ingress.choices import Choice, News
from actors.ingress.errors import ApiError
from actors.ingress.http_io import send_start
from actors.ingress.lifeline import Lifeline
from actors.ingress.voice import Keeping, Voice, written

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


class AnswerStream:
    """One streamed answer. Each reply's first token goes out at once, later ones about every `flush_s()`."""

    def __init__(
        self,
        choices: Sequence[Choice],
        life: Lifeline,
        voice: Voice,
        *,
        headers: Mapping[str, str],
        request_id: str,
        flush_s: Callable[[], float],
        keepalive_after_s: float,
        keeping: Keeping | None = None,
        as_asked: Callable[[ApiError], ApiError] = lambda error: error,
    ) -> None:
        self._choices = choices
        self._as_asked = as_asked
        self._life = life
        self._voice = voice
        self._keeping = keeping
        self._request_id = request_id
        self._flush_s = flush_s
        self._keepalive_s = keepalive_after_s or None
        self._writer = SseWriter(life.send, headers)
        self._failure: ApiError | None = None

    async def run(self) -> None:
        """Raises ApiError only while a real HTTP status can still be sent."""
        news = News(self._choices)
        try:
            while not news.over and self._failure is None:
                await self._tell(news)
        finally:
            await news.stop()

    async def _tell(self, news: News) -> None:
        try:
            fresh = await news.next(hold_s=self._flush_s(), timeout_s=self._keepalive_s)
        except ApiError as error:
            self._failure = error
            await self._fail(error, b"")
            return
        if not fresh:
            await self._write(self._voice.waits())
            return
        data = b""
        for choice, batch in fresh:
            data += await self._of(choice, batch)
            if self._failure is not None:
                await self._fail(self._failure, data)
                return
        if news.over:
            await self._ended(None)
            numbers = sum(choice.numbers(len(choice.logprobs)) for choice in self._choices)
            closing = await written(numbers, lambda: self._voice.closes(self._choices))  # Which may repeat them all.
            await self._write(data + closing, last=True)
        else:
            await self._write(data)

    async def _of(self, choice: Choice, batch: Batch) -> bytes:
        """What one choice's batch looks like. Notes the failure that it ends with, if it does."""
        parts, opened, voice = choice.read(batch), choice.opened, self._voice
        choice.running.on_backlog(self._life.backlog)
        self._failure = choice.failure
        if self._failure is not None and not batch.ids and not opened:
            return b""
        choice.opened = True
        ends = batch.end is not None and self._failure is None

        def write() -> bytes:
            data = (b"" if opened else voice.opens(choice)) + voice.says(choice, parts)
            return data + voice.ends(choice) if ends else data

        return await written(choice.numbers(len(batch.scores) + len(batch.logprobs)), write)

    async def _fail(self, error: ApiError, data: bytes) -> None:
        """An error event, or, when nothing was sent or made yet, the error itself."""
        error = self._as_asked(error)
        await self._ended(error)
        if not self._writer.started and not data:
            raise error
        await self._write(data + self._voice.fails(error, self._request_id), last=True)

    async def _ended(self, failure: ApiError | None) -> None:
        if self._keeping is not None:
            await self._keeping.ended(self._choices, failure, self._request_id)

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        if data:
            await self._writer.write(data, worker_header(self._choices), last=last)


def worker_header(choices: Sequence[Choice]) -> dict[str, str]:
    """Where the first reply is made."""
    worker_id = choices[0].running.worker_id
    return {"x-remora-worker": worker_id} if worker_id else {}
