"""One line per request, where `ingress.access_log` asks for it.

Each line is a JSON object in ASCII: what a client wrote in a path or an id is escaped, and cannot begin a line of its
own. Bodies, query strings, headers and keys are not in it; a key is called by its name.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from logging.handlers import WatchedFileHandler

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.ingress.auth import Caller, find_caller
from actors.ingress.tracing import find_span

MAX_PATH = 1024


def open_access_log(path: str) -> logging.Handler:
    """Appends to the file; opens a new one when it is rotated away. Raises OSError when it cannot be written."""
    handler = WatchedFileHandler(path, encoding="ascii")
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler


class AccessLog:
    """ASGI middleware around everything, the gate included."""

    def __init__(self, app: ASGIApp, handler: logging.Handler, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._handler = handler
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seen = _Seen()

        async def noted(message: Message) -> None:
            seen.note(message)
            await send(message)

        began = self._clock()
        try:
            await self._app(scope, receive, noted)
        finally:
            self._write(line(scope, seen, self._clock() - began))

    def _write(self, text: str) -> None:
        record = logging.LogRecord("remora.access", logging.INFO, "", 0, text, None, None)
        self._handler.handle(record)


class _Seen:
    """What went out. `status` 0: nothing did, because the client was gone."""

    def __init__(self) -> None:
        self.status = 0
        self.sent = 0
        self.complete = False
        self.request_id = ""

    def note(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            for name, value in message.get("headers", ()):
                if name.lower() == b"x-request-id":
                    self.request_id = value.decode("latin-1")
        elif message["type"] == "http.response.body":
            self.sent += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)


def line(scope: Scope, seen: _Seen, took_s: float) -> str:
    caller = find_caller(scope) or Caller("")
    fields = {
        "at": round(time.time(), 3),
        "request_id": seen.request_id,
        "tenant": caller.tenant,
        "key": caller.key_name,
        "method": scope["method"],
        "path": scope["path"][:MAX_PATH],
        "status": seen.status,
        "bytes": seen.sent,
        "complete": seen.complete,
        "ms": round(took_s * 1000, 1),
    }
    span = find_span(scope)
    if span is not None:
        fields |= {"trace_id": span.trace_id, "span_id": span.span_id, "parent_id": span.parent_id}
    return json.dumps(fields, ensure_ascii=True)
