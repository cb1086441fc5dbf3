"""W3C trace context: a request that belongs to a trace becomes a span of it, which logs and the answer name.

There is no exporter here: whoever collects traces finds the spans' ids in the logs of ingress and workers, with what
each took. Spec: https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"traceparent"
_SCOPE = "remora.span"
_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class Span:
    """This server's part of a trace. `parent_id`: the span of whoever asked. Lower-case hexadecimal, all of them."""

    trace_id: str
    parent_id: str
    span_id: str
    flags: str

    @property
    def header(self) -> str:
        """For whoever works on this span's behalf."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def span_of(given: bytes, new_id: Callable[[], str] = lambda: secrets.token_hex(8)) -> Span | None:
    """A span within the trace that a `traceparent` tells of; None for one that is not valid, which counts as none."""
    found = _PARENT.fullmatch(given.strip(b" \t"))
    if found is None:
        return None
    version, trace_id, parent_id, flags = (part.decode() for part in found.groups()[:4])
    beyond = found[5] is not None
    if version == "ff" or (version == "00" and beyond) or not trace_id.strip("0") or not parent_id.strip("0"):
        return None
    return Span(trace_id, parent_id, new_id(), flags)


def find_span(scope: Scope) -> Span | None:
    """The span of the request, once `Tracing` has seen it."""
    span: Span | None = scope.get(_SCOPE)
    return span


class Tracing:
    """ASGI middleware, outside the access log. What comes behind it reads this span in the request's `traceparent`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = [value for name, value in scope.get("headers", ()) if name == HEADER]
        if not given:
            await self._app(scope, receive, send)
            return
        span = span_of(given[0]) if len(given) == 1 else None
        headers = [header for header in scope["headers"] if header[0] != HEADER]
        if span is None:
            await self._app({**scope, "headers": headers}, receive, send)
            return
        told = (HEADER, span.header.encode())

        async def traced(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], told]}
            await send(message)

        await self._app({**scope, "headers": [*headers, told], _SCOPE: span}, receive, traced)
