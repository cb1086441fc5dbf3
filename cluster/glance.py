"""A look at workers just before something is placed by what they do.

Heartbeats come at leisure, and each worker's at another moment: of two equal workers, one may show what ended long ago.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from cluster.membership import Membership

FRESH_S = 0.02
"""Figures that are no older are not asked for again."""
EACH_S = 0.005
"""Among many workers they may be older by this for each, so that looking costs the pool the same however many there
are."""
PATIENCE_S = 0.05
"""How long the worker that takes longest may delay who wants to place something. Its older figures count then."""


@dataclass(slots=True)
class _Look:
    began_at: float
    task: asyncio.Task[None]


class Glance:
    """`ask(worker_id)`: get a heartbeat, if it can be had. `clock`: monotonic seconds."""

    def __init__(
        self,
        members: Membership,
        ask: Callable[[str], Awaitable[None]],
        heartbeat_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._members = members
        self._ask = ask
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._looks: dict[str, _Look] = {}

    async def at(self, worker_ids: Iterable[str]) -> None:
        """Have figures of now of these workers, as far as they give them in time."""
        now, names = self._clock(), list(worker_ids)
        fresh_s = min(self._heartbeat_s, max(FRESH_S, EACH_S * len(names)))
        looks = [self._look(name, now) for name in names if self._age_s(name, now) >= fresh_s]
        left_s = max((PATIENCE_S - (now - look.began_at) for look in looks), default=0.0)
        if left_s > 0:
            await asyncio.wait({look.task for look in looks}, timeout=left_s)

    def stop(self) -> None:
        for look in self._looks.values():
            look.task.cancel()

    def _age_s(self, worker_id: str, now: float) -> float:
        worker = self._members.get(worker_id)
        return 0.0 if worker is None else now - worker.heard_at

    def _look(self, worker_id: str, now: float) -> _Look:
        """One at a time, whoever waits for it; from an empty context, so that no request's end cancels it."""
        look = self._looks.get(worker_id)
        if look is None:
            task = contextvars.Context().run(asyncio.get_running_loop().create_task, self._once(worker_id))
            look = self._looks[worker_id] = _Look(now, task)
        return look

    async def _once(self, worker_id: str) -> None:
        try:
            await self._ask(worker_id)
        finally:
            del self._looks[worker_id]
