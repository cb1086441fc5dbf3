"""Ends a handler when its client has gone or stopped reading.

Under Serve a closed socket arrives as a cancellation of the handler; under a plain ASGI server it arrives as a message
on `receive`. When Serve's HTTP proxy dies, and its connections with it, `receive` raises. All become the same thing
here: the handler's task is cancelled, its `finally` blocks run, and nothing is sent any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from starlette.types import Message, Receive, Send

from actors.ingress.channel import spawn
from actors.ingress.http_io import heard

BYTES_PER_HELD_ID = 32
"""Roughly what a token id costs while it waits in a Python list."""


class Lifeline:
    """`async with Lifeline(...)`: inside, a vanished client cancels the current task; the cancellation ends here."""

    def __init__(self, receive: Receive, send: Send, *, stall_timeout_s: float, buffer_bytes: int) -> None:
        self._receive = receive
        self._send = send
        self._stall_timeout_s = stall_timeout_s
        self._max_backlog = max(1, buffer_bytes // BYTES_PER_HELD_ID)
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._sending = False
        self._complete = False
        self.gone = False
        """The client cannot be reached any more: it closed, or it stalled."""

    async def __aenter__(self) -> Lifeline:
        self._task = asyncio.current_task()
        self._watcher = spawn(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._watcher is not None
        assert self._task is not None
        self._watcher.cancel()
        if not self.gone:
            return False
        if not isinstance(error, asyncio.CancelledError):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # our own cancellation, asked for too late to be met before
        if hasattr(self._task, "uncancel"):
            self._task.uncancel()
        return isinstance(error, asyncio.CancelledError)

    async def send(self, message: Message) -> None:
        """Send, but not for longer than the stall timeout (rule A8). Cancels the handler's task when it is over."""
        timer = asyncio.get_running_loop().call_later(self._stall_timeout_s, self._cut)
        self._sending = True
        try:
            await self._send(message)
            self._complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        except OSError:
            self._cut()
            await asyncio.sleep(0)
        finally:
            self._sending = False
            timer.cancel()

    def backlog(self, waiting_ids: int) -> None:
        """How much waits to be sent. More than the buffer holds, behind a blocked send, is a stalled reader too."""
        if self._sending and waiting_ids > self._max_backlog:
            self._cut()

    async def _watch(self) -> None:
        while (await heard(self._receive))["type"] != "http.disconnect":
            pass
        self._cut()

    def _cut(self) -> None:
        if not self.gone and not self._complete and self._task is not None:
            self.gone = True
            self._task.cancel()
