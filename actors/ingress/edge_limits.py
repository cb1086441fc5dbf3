"""What stands around the application, the gate included: how large a request's head may be, other sites' pages, names
of requests."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.ingress.error_shapes import error_body, is_anthropic
from actors.ingress.errors import Invalid
from actors.ingress.http_io import path_of, request_id_of, send_json

EXPOSED_HEADERS = ("x-request-id", "request-id", "x-remora-worker", "retry-after", "x-should-retry", "traceparent")
PREFLIGHT_MAX_AGE_S = 600
_PER_HEADER = 4
"""`: ` and the line's end."""


class HeadLimit:
    """ASGI middleware: 431 for a path, query and headers of more than so many bytes together. Servers differ in what
    they let through, some without any limit."""

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self._app = app
        self._limit = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and head_bytes(scope) > self._limit:
            request_id = request_id_of(Headers(scope=scope))
            message = f"The path, query and headers together are longer than {self._limit} bytes."
            error = Invalid(None, message, code="headers_too_large", status=431)
            body = error_body(error, request_id, path_of(scope))
            await send_json(send, error.status, body, {"x-request-id": request_id, **error.headers()})
            return
        await self._app(scope, receive, send)


class AnthropicIds:
    """ASGI middleware: answers of Anthropic's routes name the request as its clients read it, too, in `request-id`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_anthropic(path_of(scope)):
            await self._app(scope, receive, send)
            return

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                ids = [(b"request-id", value) for name, value in message["headers"] if name == b"x-request-id"]
                message = {**message, "headers": [*message["headers"], *ids]}
            await send(message)

        await self._app(scope, receive, named)


class NamedOutside:
    """ASGI middleware, outside all others: whoever carries the request here names it in `x-request-id`, and does so in
    the answer, too, where the name would stand twice."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def unnamed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [header for header in message["headers"] if header[0] != b"x-request-id"]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, unnamed)


def head_bytes(scope: Scope) -> int:
    headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
    size = sum(len(name) + len(value) + _PER_HEADER for name, value in headers)
    return size + len(scope.get("raw_path") or scope["path"]) + len(scope.get("query_string", b""))


def cors(origins: Sequence[str]) -> list[Middleware]:
    """Lets pages of these origins use the API; without any, no browser lets one. It stands outside the gate, because a
    browser asks beforehand without a key. Keys go in headers, so there are no cookies to allow."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=list(EXPOSED_HEADERS),
            max_age=PREFLIGHT_MAX_AGE_S,
        )
    ]
