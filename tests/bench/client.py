"""A streaming client of the OpenAI chat API that costs little: it shares the cores with the server it measures."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from tests.bench.figures import BenchError, Reply

ANSWER_S = 600.0
CONNECT_S = 10.0
DONE = b"[DONE]"
REMORA, LLAMA_CPP = "remora", "llamacpp"
"""Who owns the models of a server, as it says itself."""
Message = Mapping[str, str]


class SseParser:
    """Bytes of an event stream in any portions → the data of its events. Comments and other fields are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that `piece` completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events


class ReplyReader:
    """Collects one streamed reply. `take` raises BenchError for an error event."""

    def __init__(self, sent: float) -> None:
        self._sent = sent
        self._first: float | None = None
        self._ended: float | None = None
        self._usage: dict[str, Any] | None = None
        self._text: list[str] = []
        self._arrivals: list[float] = []

    def take(self, data: bytes, now: float) -> None:
        if data == DONE:
            return
        tree = orjson.loads(data)
        if "error" in tree:
            raise BenchError(f"the stream ended with an error: {tree['error']}")
        self._usage = tree.get("usage") or self._usage
        for choice in tree.get("choices", ()):
            content = choice.get("delta", {}).get("content")
            if content:
                self._text.append(content)
                self._note(now)
            if self._first is None and (content or choice.get("finish_reason")):
                self._first = now
            if choice.get("finish_reason"):
                self._ended = now

    def _note(self, now: float) -> None:
        """Texts that came in one piece of bytes have one arrival."""
        if not self._arrivals or self._arrivals[-1] != now:
            self._arrivals.append(now)

    def reply(self) -> Reply:
        """What was collected. Raises BenchError when the stream was cut short or came without `usage`."""
        if self._first is None or self._ended is None:
            raise BenchError("the stream ended without a finish_reason")
        if self._usage is None:
            raise BenchError("the server sent no usage, though stream_options.include_usage asks for it")
        details = self._usage.get("prompt_tokens_details") or {}
        return Reply(
            sent=self._sent,
            first=self._first,
            ended=self._ended,
            prompt_tokens=self._usage["prompt_tokens"],
            completion_tokens=self._usage["completion_tokens"],
            cached_tokens=details.get("cached_tokens"),
            text="".join(self._text),
            arrivals=tuple(self._arrivals),
        )


class ChatClient:
    """Chats with one model of one server. Make it with `connect`."""

    def __init__(self, http: httpx.AsyncClient, model: str, owner: str) -> None:
        self._http = http
        self.model = model
        self.owner = owner
        """Who the server says owns the model: `remora`, `vllm`, `llamacpp`, …"""

    @property
    def is_remora(self) -> bool:
        """Whether the server has Remora's own routes."""
        return self.owner == REMORA

    async def chat(
        self,
        messages: list[Message],
        max_tokens: int,
        session: dict[str, Any] | None = None,
        *,
        chat_number: int | None = None,
    ) -> Reply:
        """One greedy reply of exactly `max_tokens` tokens, where the server knows `ignore_eos`. Raises BenchError.

        `chat_number`: which of several conversations this is, for a server that finds a conversation's cache by it.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "min_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if session is not None:
            body["session"] = session
        if chat_number is not None and self.owner == LLAMA_CPP:
            body["id_slot"] = chat_number
        content = orjson.dumps(body)
        parser, reader = SseParser(), ReplyReader(time.perf_counter())
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        async with self._http.stream("POST", "/v1/chat/completions", content=content, headers=headers) as response:
            if response.status_code != httpx.codes.OK:
                raise BenchError(f"{response.status_code}: {(await response.aread()).decode(errors='replace')}")
            async for piece in response.aiter_raw():
                now = time.perf_counter()
                for data in parser.feed(piece):
                    reader.take(data, now)
        return reader.reply()

    async def close_session(self, session_id: str) -> None:
        answer = await self._http.delete(f"/v1/sessions/{quote(session_id, safe='')}")
        if answer.status_code != httpx.codes.OK:
            raise BenchError(f"closing session {session_id}: {answer.status_code}: {answer.text}")

    async def pages_of_requests(self) -> int:
        """KV pages that requests hold at this moment, on all of Remora's workers."""
        workers = (await self._http.get("/v1/stats")).raise_for_status().json()["workers"]
        silent = [row.get("id", "?") for row in workers if "pages" not in row]
        if silent:
            raise BenchError(f"workers that do not say what they hold: {silent}")
        return sum(row["pages"]["request_owned"] for row in workers)


@asynccontextmanager
async def connect(url: str, model: str = "") -> AsyncIterator[ChatClient]:
    """A client for the server at `url`; `model` empty: the first that it lists. Raises BenchError when it is not there,
    and for every connection that breaks inside."""
    timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
    # A connection for each request: some servers close one that waits just when the next request is sent on it.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    try:
        async with httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits, trust_env=False) as http:
            listed = (await http.get("/v1/models")).raise_for_status().json()["data"]
            chosen = next((entry for entry in listed if entry["id"] == model or not model), None)
            if chosen is None:
                raise BenchError(f"{url} has no model {model!r}: {[entry['id'] for entry in listed]}")
            yield ChatClient(http, chosen["id"], chosen.get("owned_by", ""))
    except httpx.HTTPError as error:
        raise BenchError(f"{url}: {type(error).__name__}: {error}") from error
