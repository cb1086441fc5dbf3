"""Reading bodies and writing plain JSON answers over ASGI."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from actors.ingress.errors import Invalid

log = logging.getLogger(__name__)

MAX_REQUEST_ID = 128


class ClientGone(Exception):
    """The client closed before its body was read."""


def request_id_of(headers: Mapping[str, str]) -> str:
    """The client's X-Request-Id when it is fit for one log line, else one of ours."""
    given = headers.get("x-request-id", "")
    if 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable():
        return given
    return f"req-{secrets.token_hex(12)}"


def path_of(scope: Scope) -> str:
    """The path within the application, as the router sees it."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


async def read_body(headers: Headers, receive: Receive, limit_bytes: int, timeout_s: float = 0.0) -> bytes:
    """The whole body. Raises Invalid: 413 when it is longer than the limit, 408 when it is not there in time (0 = never
    too late); and ClientGone when it never ends."""
    reading = asyncio.ensure_future(_read(headers, receive, limit_bytes))
    reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # Nobody may be left to ask for it.
    try:
        # Not `wait_for`: until Python 3.12 it can lose a cancellation, and here that is a client that has gone.
        await asyncio.wait({reading}, timeout=timeout_s or None)
        if reading.done():
            return reading.result()
    finally:
        reading.cancel()
        del reading  # What it raised leads here, and would keep the body in a circle until that is looked for.
    raise Invalid(None, f"The body did not arrive within {timeout_s:g} s.", code="request_timeout", status=408)


async def _read(headers: Headers, receive: Receive, limit_bytes: int) -> bytes:
    announced = headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:20]) > limit_bytes:
        raise _too_long(limit_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await heard(receive)
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise _too_long(limit_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def heard(receive: Receive) -> Message:
    """The next message; a disconnect when there cannot be one. Under Serve, `receive` raises errors of Ray when the
    proxy that holds the connection gave the request up, or died: either way nobody is there any more."""
    try:
        return await receive()
    except Exception as error:
        log.info("a connection is lost: %s", type(error).__name__)
        return {"type": "http.disconnect"}


async def send_start(send: Send, status: int, content_type: str, headers: Mapping[str, str]) -> None:
    raw = [(b"content-type", content_type.encode())]
    raw += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def send_whole(
    send: Send, status: int, body: bytes, headers: Mapping[str, str], content_type: str = "application/json"
) -> None:
    await send_start(send, status, content_type, {"content-length": str(len(body)), **headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_json(send: Send, status: int, tree: Any, headers: Mapping[str, str]) -> None:
    await send_whole(send, status, orjson.dumps(tree), headers)


def _too_long(limit_bytes: int) -> Invalid:
    message = f"The body is longer than {limit_bytes} bytes."
    return Invalid(None, message, code="request_too_large", status=413)
