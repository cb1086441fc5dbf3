"""Events of many requests over one poll loop per worker.

A `Line` is one attempt's end of the channel: the pump pushes, the request's handler takes. Nothing here awaits while
it holds half-done state; everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from actors.messages import Abort, Finished, PromptScore, Reason, TokenIds, TokenLogprobs, Tokens
from actors.ports import PoolPort, WorkerGone, WorkerPort

log = logging.getLogger(__name__)

EARLY = 0.125
"""By what part of the time that tokens gather they may be taken earlier: workers hand them over in the same rhythm, so
that what comes a bit early is not made to wait for a timer of its own."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What came since the last look: new output ids, and the end if it was reached. Both empty: time ran out."""

    ids: TokenIds = ()
    end: Finished | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the last of `ids`, where they were asked for."""
    scores: tuple[PromptScore, ...] = ()
    """Of the prompt, where they were asked for: all of them, with the first ids or the end."""


class Line:
    """One attempt's events, in order. `received` counts output tokens: the index the next one must have."""

    def __init__(self, key: str, worker_id: str, received: int = 0) -> None:
        self.key = key
        self.worker_id = worker_id
        self.received = received
        self.prompt = b""
        """Says from which prompt the tokens were made; empty until the first of a turn."""
        self.on_end: Callable[[Finished | None], None] | None = None
        """Called instead of keeping the end for `take`, once nobody takes any more. None: the worker was lost."""
        self.on_backlog: Callable[[int], None] | None = None
        """Told how many ids wait each time some are added, while a send is blocked (rule A8)."""
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._scores: list[PromptScore] = []
        self._end: Finished | None = None
        self._lost: str | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._taken_at = -math.inf
        """When ids were taken last, by the loop's clock."""
        self._hold_s = 0.0

    @property
    def over(self) -> bool:
        """Whether nothing more can come."""
        return self._end is not None or self._lost is not None

    @property
    def end(self) -> Finished | None:
        """The worker's account of the end, if it has come."""
        return self._end

    def push(self, event: Tokens | Finished) -> bool:
        """Add an event. False: there is a gap before it, so that the rest is worthless (the line is lost now)."""
        if self.over:
            return True
        if isinstance(event, Tokens):
            return self._push_tokens(event)
        if event.completion_tokens > self.received:
            self.lose("tokens before the end are missing")
            return False
        self._end = event
        self._tell_end(event)
        return True

    def lose(self, why: str) -> None:
        """The worker is gone, or its events are no longer whole."""
        if not self.over:
            self._lost = why
            self._tell_end(None)

    async def take(self, *, hold_s: float = 0.0, timeout_s: float | None = None) -> Batch:
        """Everything that has come. Waits until there is something and it is about `hold_s` since ids were taken last,
        so that they gather; or for the end; or until nothing has come for `timeout_s`. Raises WorkerGone when the line
        is lost and was read up."""
        self._hold_s = hold_s
        if not self.over and not (self._ids and self._held_s() <= 0):
            await self._wait(self._held_s() if self._ids else timeout_s)
        ids, self._ids = tuple(self._ids), []
        logprobs, self._logprobs = tuple(self._logprobs), []
        if self._lost is not None and not ids:
            raise WorkerGone(self._lost)
        if not ids and self._end is None:
            return Batch()
        if ids:
            self._taken_at = asyncio.get_running_loop().time()
        scores, self._scores = tuple(self._scores), []
        return Batch(ids, self._end, logprobs, scores)

    def _push_tokens(self, event: Tokens) -> bool:
        if event.index > self.received:
            self.lose("tokens are missing")
            return False
        self.prompt = event.prompt or self.prompt
        self._scores.extend(event.prompt_scores)
        fresh = event.ids[self.received - event.index :]
        self.received += len(fresh)
        self._ids.extend(fresh)
        if event.logprobs and fresh:
            self._logprobs.extend(event.logprobs[-len(fresh) :])
        if self.on_backlog is not None:
            self.on_backlog(len(self._ids))
        if self._waiter is not None and self._ids:
            self._wake_in(self._held_s())
        return True

    def _held_s(self) -> float:
        """For how long what has come should gather yet."""
        return self._taken_at + self._hold_s * (1 - EARLY) - asyncio.get_running_loop().time() if self._hold_s else 0.0

    def _tell_end(self, end: Finished | None) -> None:
        if self.on_end is not None:
            self.on_end(end)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _wake_in(self, wait_s: float) -> None:
        if wait_s <= 0:
            self._wake()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._wake)

    async def _wait(self, timeout_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._timer = loop.call_later(timeout_s, self._wake) if timeout_s is not None else None
        try:
            await self._waiter
        finally:
            self._waiter = None
            if self._timer is not None:
                self._timer.cancel()


class Pump:
    """Polls one worker and hands its events to the lines. Dies with the worker, and its lines with it."""

    def __init__(self, worker_id: str, port: WorkerPort, ingress_id: str, patience_s: float) -> None:
        self.worker_id = worker_id
        self.port = port
        self.alive = True
        self._ingress_id = ingress_id
        self._patience_s = patience_s
        self._lines: dict[str, Line] = {}
        self._stopping = False
        self._task = spawn(self._run())

    def __len__(self) -> int:
        return len(self._lines)

    def open_line(self, key: str, received: int = 0) -> Line:
        """`received`: output tokens that an earlier attempt has brought."""
        line = Line(key, self.worker_id, received)
        self._lines[key] = line
        return line

    def drop_line(self, key: str) -> None:
        self._lines.pop(key, None)

    def dispatch(self, events: list[Any]) -> list[str]:
        """Give each event to its line; events of unknown keys are late ones, and nobody's. Returns the keys whose
        events have a gap: the worker must be told to stop those."""
        broken = []
        for event in events:
            line = self._lines.get(event.key) if isinstance(event, (Tokens, Finished)) else None
            if line is None:
                continue
            if not line.push(event):
                broken.append(event.key)
            if line.over:
                self.drop_line(event.key)
        return broken

    async def stop(self) -> None:
        self._stopping = True  # `wait_for` may swallow a cancellation that meets its result (before Python 3.12).
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._die("the server is stopping")

    async def _run(self) -> None:
        why = "the worker is gone"
        try:
            while not self._stopping:
                events = await asyncio.wait_for(self.port.poll(self._ingress_id), self._patience_s)
                self._stop_broken(self.dispatch(events))
        except WorkerGone:
            log.warning("worker %s is gone; %d requests were running there", self.worker_id, len(self._lines))
        except asyncio.TimeoutError:
            why = "the worker does not answer"
            log.error("worker %s has not answered a poll for %.0f s", self.worker_id, self._patience_s)
        except Exception:
            why = "the worker's events could not be read"
            log.exception("polling worker %s failed", self.worker_id)
        self._die(why)

    def _stop_broken(self, keys: list[str]) -> None:
        if keys:
            log.error("events of %d requests on worker %s have a gap", len(keys), self.worker_id)
            self.port.tell(Abort(keys=tuple(keys), reason=Reason.WORKER_LOST))

    def _die(self, why: str) -> None:
        self.alive = False
        lines, self._lines = self._lines, {}
        for line in lines.values():
            line.lose(why)


class Channels:
    """The pumps of one ingress: at most one living pump per worker."""

    def __init__(self, pool: PoolPort, ingress_id: str, *, patience_s: float) -> None:
        self._pool = pool
        self._ingress_id = ingress_id
        self._patience_s = patience_s
        self._pumps: dict[str, Pump] = {}

    def to(self, worker_id: str) -> Pump:
        pump = self._pumps.get(worker_id)
        if pump is None or not pump.alive:
            pump = Pump(worker_id, self._pool.worker(worker_id), self._ingress_id, self._patience_s)
            self._forget_dead()
            self._pumps[worker_id] = pump
        return pump

    def open_lines(self) -> dict[str, int]:
        """Requests of this ingress on each worker."""
        return {worker_id: len(pump) for worker_id, pump in self._pumps.items() if pump.alive}

    async def stop(self) -> None:
        await asyncio.gather(*(pump.stop() for pump in self._pumps.values()))

    def _forget_dead(self) -> None:
        self._pumps = {worker_id: pump for worker_id, pump in self._pumps.items() if pump.alive}


def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task of its own: started from an empty context, so that cancelling the request in whose time it happens to be
    started cannot reach the actor calls it makes."""
    return contextvars.Context().run(asyncio.get_running_loop().create_task, work)
