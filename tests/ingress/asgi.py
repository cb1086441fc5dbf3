"""A client that drives an ASGI application piece by piece: it can stop reading, and leave in the middle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import unquote

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], limit_s: float = 20.0) -> T:
    """Run a test's coroutine; a hang is a failure."""
    return asyncio.run(asyncio.wait_for(work, limit_s))


async def eventually(holds: Callable[[], object]) -> None:
    """Let the loop run until something that happens in it has happened."""
    while not holds():  # noqa: ASYNC110 (there is no event to wait for)
        await asyncio.sleep(0.001)


class Call:
    """One request on its way. `pieces` holds what has been sent; `gone` is what the application hears last."""

    def __init__(self, app: Any, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended = False
        self.stuck = False
        self._news = asyncio.Event()
        self._gone = asyncio.Event()
        self._broken = False
        self._released = asyncio.Event()
        self._incoming = [{"type": "http.request", "body": body, "more_body": False}]
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self.task = asyncio.get_running_loop().create_task(app(scope, self._receive, self._send))

    def disconnect(self) -> None:
        self._gone.set()

    def break_off(self) -> None:
        """What carried the request to the application dies: `receive` raises what no application knows."""
        self._broken = True
        self._gone.set()

    @property
    def unread(self) -> bool:
        """The application never asked for the body."""
        return bool(self._incoming)

    async def piece(self) -> bytes:
        """What is sent next."""
        seen = len(self.body)
        while len(self.body) == seen and not self.task.done():
            self._news.clear()
            waiter = asyncio.ensure_future(self._news.wait())
            await asyncio.wait({waiter, self.task}, return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()
        return self.body[seen:]

    async def until(self, text: str) -> None:
        while text.encode() not in self.body:
            assert await self.piece(), f"{text!r} never came: {self.body!r}"

    async def whole(self) -> Call:
        await self.task
        return self

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of the SSE events, parsed; "[DONE]" stays a string."""
        data = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [item if item == "[DONE]" else json.loads(item) for item in data]

    @property
    def text(self) -> str:
        chunks = [event for event in self.events if isinstance(event, dict) and event.get("choices")]
        return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)

    async def _receive(self) -> dict[str, Any]:
        if self._incoming:
            return self._incoming.pop(0)
        await self._gone.wait()
        if self._broken:
            raise RuntimeError("the connection's process is gone")
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if self.stuck:
            await self._released.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
            self.ended = not message.get("more_body", False)
        self._news.set()


class Client:
    """Calls against one application."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def start(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Call:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return Call(self._app, method, path, data, headers or {})

    def chat(self, content: object = "hello", headers: dict[str, str] | None = None, **fields: Any) -> Call:
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return self.start("POST", "/v1/chat/completions", {"messages": messages, **fields}, headers)

    async def get(self, path: str) -> Call:
        return await self.start("GET", path).whole()

    async def post(self, path: str, body: object = None) -> Call:
        return await self.start("POST", path, body).whole()
