"""A bare HTTP/1.1 client over asyncio that can do what well-behaved ones cannot: leave at any moment, by FIN or RST."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

import orjson

PATIENCE_S = 60.0
"""An answer that takes longer counts as a hang."""


class CutShort(Exception):
    """The server closed the connection in the middle of its answer, or before it. `body`: what had come of it."""

    def __init__(self, message: str, body: bytes = b"") -> None:
        super().__init__(message)
        self.body = body


@dataclass
class Answer:
    """`status` 0: we left before there was one. `events`: the SSE events of a stream, decoded."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def tree(self) -> Any:
        return orjson.loads(self.body)

    @property
    def events(self) -> list[Any]:
        lines = self.body.decode().split("\n")
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [orjson.loads(line) for line in data if line != "[DONE]"]


@dataclass(frozen=True)
class Leaving:
    """When to close the connection, and how: `after_s` from when the request was sent, or as soon as `after_events`
    events of a stream have come, or, with `part` below 1, when only that share of the body was sent."""

    after_s: float
    reset: bool = False
    after_events: int = 0
    part: float = 1.0


class RawClient:
    """One connection per request."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    async def call(
        self,
        method: str,
        path: str,
        tree: Any = None,
        *,
        leave: Leaving | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Raises TimeoutError when there is no whole answer within `PATIENCE_S`, CutShort, OSError."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        body = b"" if tree is None else tree if isinstance(tree, bytes) else orjson.dumps(tree)
        lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        try:
            sent = body if leave is None else body[: int(len(body) * leave.part)]
            writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
            if leave is None:
                return parse(await asyncio.wait_for(reader.read(), PATIENCE_S))
            whole = await self._until(reader, leave)
            if whole is not None:
                return parse(whole)
            if leave.reset:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            return Answer(0)
        finally:
            writer.close()

    async def _until(self, reader: asyncio.StreamReader, leave: Leaving) -> bytes | None:
        """The whole answer, if it ends before it is time to leave."""
        got = b""
        with contextlib.suppress(asyncio.TimeoutError):
            if not leave.after_events:
                return await asyncio.wait_for(reader.read(), leave.after_s)
            while got.count(b"data: ") < leave.after_events:
                piece = await asyncio.wait_for(reader.read(65536), PATIENCE_S)
                if not piece:
                    return got
                got += piece
        return None


def parse(data: bytes) -> Answer:
    """A whole response, as it was on the wire."""
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 "):
        raise CutShort(f"not an answer: {data[:200]!r}")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = _joined(body)
    return Answer(int(first.split(" ")[1]), headers, body)


def _joined(body: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while True:
        line_end = body.find(b"\r\n", at)
        if line_end < 0:
            raise CutShort(f"a body that was cut: …{body[-200:]!r}", b"".join(parts))
        size = int(body[at:line_end], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(body[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2
