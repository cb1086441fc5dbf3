"""Responses that run in this replica: who asks for one here is told how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import Message, Receive, Send

from actors.ingress.lifeline import Lifeline
from actors.ingress.openai_answers import KEEP_ALIVE
from actors.ingress.responses.told import Told
from actors.ingress.responses.voice import Teller
from actors.ingress.running import Running
from actors.ingress.streams import SseWriter


class Live:
    """One that runs here. `running` is set once it is on its way to a worker. `over` when it has ended: then its record
    is stored, or has had its time to be."""

    def __init__(self, told: Told, running: Running) -> None:
        self.told = told
        self.running = running
        self.over = asyncio.Event()
        self._news = asyncio.Event()

    def tell(self) -> None:
        """There is more, or the end."""
        heard, self._news = self._news, asyncio.Event()
        heard.set()

    @property
    def next_news(self) -> asyncio.Event:
        """Set by the next `tell`. Get it before you look how far the response is, and nothing is missed."""
        return self._news

    def finish(self) -> None:
        self.over.set()
        self.tell()


class Book:
    """All of them, by tenant and id; and the tasks of those that run in the background."""

    def __init__(self) -> None:
        self._live: dict[tuple[str, str], Live] = {}
        self._work: set[asyncio.Task[None]] = set()

    def find(self, tenant: str, response_id: str) -> Live | None:
        return self._live.get((tenant, response_id))

    def add(self, tenant: str, live: Live) -> None:
        """One that runs already keeps its name: this is the same request, sent again."""
        self._live.setdefault((tenant, live.told.id), live)

    def remove(self, tenant: str, live: Live) -> None:
        if self.find(tenant, live.told.id) is live:
            del self._live[tenant, live.told.id]
        live.finish()

    def adopt(self, work: asyncio.Task[None]) -> None:
        """Work that goes on when its request has been answered."""
        self._work.add(work)
        work.add_done_callback(self._work.discard)

    async def close(self, patience_s: float) -> None:
        """Wait for the last words of what was ended."""
        if self._work:
            await asyncio.wait(self._work, timeout=patience_s)
        for work in self._work:
            work.cancel()


class Link:
    """A client's connection, which its request may outlive: once `cut`, the client is heard no more, and what is sent
    goes nowhere; up to `accept` it is kept, since it may be a refusal that the client is to see."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.is_cut = False
        self.accepted = asyncio.Event()
        self.kept: list[Message] = []
        self.live: Live | None = None

    def cut(self) -> None:
        self.is_cut = True

    def accept(self) -> None:
        self.kept.clear()
        self.accepted.set()

    async def receive(self) -> Message:
        if self.is_cut:
            await asyncio.Event().wait()
        return await self._receive()

    async def send(self, message: Message) -> None:
        if not self.is_cut:
            await self._send(message)
        elif not self.accepted.is_set():
            self.kept.append(message)
        if self.live is not None:
            self.live.tell()

    async def refuse(self) -> None:
        """Give the client the answer of work that ended before it was accepted."""
        for message in self.kept:
            await self._send(message)


async def follow(
    live: Live, life: Lifeline, headers: Mapping[str, str], *, after: int = -1, keepalive_s: float | None
) -> None:
    """Tell a client of a response from event number `after` on, up to its end."""
    told, teller, seen = live.told, Teller(live.told, after), 0
    writer = SseWriter(life.send, headers)
    data = teller.opens()
    while True:
        news, over = live.next_news, live.over.is_set()
        parts, seen = told.parts[seen:], len(told.parts)
        data += teller.says(parts)
        if over:
            data += teller.fails() if told.error is not None else teller.ends()
            await writer.write(data, {}, last=True)
            return
        if data:
            await writer.write(data, {})
        data = b"" if await set_within(news, keepalive_s) else KEEP_ALIVE


async def set_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Whether it is set within that time. A cancellation that meets it is a cancellation (`asyncio.wait_for` may lose
    it before Python 3.12)."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting}, timeout=timeout_s)
    finally:
        waiting.cancel()
    return event.is_set()
