"""Clients that send or read slowly, or do nothing at all, beside one that does not notice: over real sockets."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from actors.runner.toy import toy_continuation
from tests.ingress.asgi import run
from tests.ingress.web import Web, serving

IDLE = 1000
LORISES = 50
LIMIT_S = 90.0
"""For everything together on a machine that is busy with other things; alone it takes two seconds."""
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@contextmanager
def many_files(wanted: int) -> Iterator[None]:
    """Both ends of every connection are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"a process may have {hard} open files here; this needs {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Raw:
    """A connection that says what it is told to, byte for byte, and need not read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, web: Web, *, window_bytes: int = 0) -> Raw:
        made = socket.socket()
        made.setblocking(False)
        if window_bytes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", web.port))
        return cls(*await asyncio.open_connection(sock=made, limit=1024))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    @property
    def held(self) -> bool:
        """The server has neither answered nor closed."""
        return not self.reader.at_eof()


@asynccontextmanager
async def connections(web: Web, count: int, **options: Any) -> AsyncIterator[list[Raw]]:
    made: list[Raw] = []
    try:
        for _ in range(count):
            made.append(await Raw.connect(web, **options))  # noqa: PERF401 (what is open must be closed)
        yield made
    finally:
        for raw in made:
            raw.writer.close()


def chat(tokens: int, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens, "temperature": 0, **fields}


def expected(count: int) -> str:
    return bytes(toy_continuation(list(b"user: hi\nassistant: "), count)).decode()


async def healthy(web: Web, tokens: int) -> str:
    """The text of a stream that is read as it comes."""
    text = ""
    async with (
        httpx.AsyncClient(timeout=LIMIT_S, trust_env=False) as client,
        client.stream("POST", f"{web.url}/v1/chat/completions", json=chat(tokens, stream=True)) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
    return text


@pytest.mark.slow
def test_a_thousand_idle_connections_and_slow_heads_disturb_nobody(tmp_path: Path) -> None:
    """I1: a connection that asks for nothing costs nothing; one that never ends its head costs the HTTP server a
    socket, and no request, worker or limit."""

    async def check(web: Web) -> None:
        async with connections(web, IDLE) as idle, connections(web, LORISES) as slow:
            for raw in slow:
                await raw.send(HEAD + b"x-a: ")
            for _ in range(3):
                for raw in slow:
                    await raw.send(b"b")
                assert await healthy(web, 100) == expected(100)
            assert web.at.ingress.metrics.open_requests == 0
            assert all(raw.held for raw in [*idle, *slow])
            body = json.dumps(chat(4)).encode()
            late = b"\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            await slow[0].send(late + body)
            assert b"HTTP/1.1 200" in await slow[0].reader.read(400)
            await idle[0].send(HEAD + late[2:] + body)
            assert b"HTTP/1.1 200" in await idle[0].reader.read(400)

    with many_files(2 * (IDLE + LORISES) + 500), serving(tmp_path, step_s=0.001) as web:
        run(check(web), LIMIT_S)


@pytest.mark.slow
def test_bodies_that_never_come_are_given_up(tmp_path: Path) -> None:
    """I1: 408 after `body_timeout_s`, while others are served."""

    async def check(web: Web) -> None:
        async with connections(web, LORISES) as slow:
            for raw in slow:
                await raw.send(HEAD + b"content-length: 100000\r\n\r\n{")
            assert await healthy(web, 200) == expected(200)
            answers = await asyncio.gather(*(raw.reader.read(400) for raw in slow))
        assert all(answer.startswith(b"HTTP/1.1 408") for answer in answers)
        assert web.at.ingress.limiter.usage("default").open == 0

    with serving(tmp_path, step_s=0.001, body_timeout_s=0.5) as web:
        run(check(web), LIMIT_S)


@pytest.mark.slow
def test_a_reader_that_stalls_is_cut_and_the_others_read_on(tmp_path: Path) -> None:
    """A8: after `stall_timeout_s`, its pages come back, while another's stream goes on in full."""

    async def check(web: Web) -> None:
        async with connections(web, 1, window_bytes=2048) as (stalled,):
            body = json.dumps(chat(8000, stream=True)).encode()
            await stalled.send(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
            web.wait_until(lambda: web.at.ingress.metrics.open_requests == 1)
            stalled.writer.transport.pause_reading()  # type: ignore[attr-defined]
            assert await healthy(web, 300) == expected(300)
            while web.at.ingress.metrics.open_requests:  # noqa: ASYNC110 (what ends it is in the server's thread)
                await asyncio.sleep(0.01)
        ends = web.at.ingress.metrics.ended.labels("abort", "client_disconnect", "decode")
        assert ends._value.get() == 1
        web.wait_until(lambda: web.at.pages("w1")["request_owned"] == 0)

    with serving(tmp_path, step_s=0.0005, stall_timeout_s=0.5, flush_s=0.0, socket_bytes=16384) as web:
        run(check(web), LIMIT_S)
