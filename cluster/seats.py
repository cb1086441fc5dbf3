"""Seats for sessions on workers: where a new one goes, with those counted that are on their way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from actors.ports import NoWorker, SessionLimit, WeightsGone
from cluster.fleet import Fleet
from cluster.membership import Worker
from cluster.placement import Directory, choose

UNLIMITED = 2**62


class Seats:
    """`wait_s`: how long a session waits here for a worker to be ready."""

    def __init__(self, fleet: Fleet, directory: Directory, wait_s: float) -> None:
        self._fleet = fleet
        self._directory = directory
        self._wait_s = wait_s
        self._coming: Counter[str] = Counter()
        self.waiting = 0
        """Callers that wait for a worker to be ready."""

    @asynccontextmanager
    async def take(
        self, max_sessions: int, prefer: str | None = None, *, weights: str = "", but: str | None = None
    ) -> AsyncIterator[str]:
        """A seat on `prefer` if that has room, else on the worker with most headroom; counted as taken until the
        directory has it. `max_sessions` of each worker; 0 for no limit. `weights`: only where these are. `but`: not
        there.

        Waits for a worker to be ready. Raises NoWorker, SessionLimit, WeightsGone.
        """
        if prefer is not None and self._has_room(prefer, max_sessions or UNLIMITED, weights):
            worker_id = prefer
        else:
            worker_id = await self._choose(max_sessions, weights, but)
        self._coming[worker_id] += 1
        try:
            yield worker_id
        finally:
            self._coming[worker_id] -= 1
            self._coming += Counter()  # Drops workers at zero.

    def _ready(self, weights: str) -> list[Worker]:
        """Workers that a session may be given to: those that are kept for pinned ones are for these only."""
        ready = self._fleet.members.ready()
        if weights:
            return [worker for worker in ready if worker.weights == weights]
        return [worker for worker in ready if worker.kept_at is None]

    def _suiting(self, weights: str, but: str | None) -> list[Worker]:
        return [worker for worker in self._ready(weights) if worker.worker_id != but]

    def _has_room(self, worker_id: str, max_sessions: int, weights: str) -> bool:
        ready = {worker.worker_id for worker in self._ready(weights)}
        return worker_id in ready and self._count(worker_id) < max_sessions

    async def _choose(self, max_sessions: int, weights: str, but: str | None) -> str:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._wait_s
        while True:
            ready = self._suiting(weights, but)
            if len(ready) > 1:
                await self._fleet.glance.at([worker.worker_id for worker in ready])
                ready = self._suiting(weights, but)
            untold = self._directory.untold
            chosen = choose(ready, self._count, max_sessions or UNLIMITED, coming=self._on_their_way, gone=untold.gone)
            if chosen is not None:
                return chosen
            if ready:
                raise SessionLimit(f"Every worker has {max_sessions} sessions, which is the limit of each.")
            if weights and not self._fleet.may_have(weights):
                raise WeightsGone(weights)
            if not await self._change(give_up_at - loop.time()):
                raise NoWorker(self._why_none())

    async def _change(self, left_s: float) -> bool:
        """Wait for the workers to change. False: the time ran out."""
        if left_s <= 0:
            return False
        self.waiting += 1
        try:
            return await self._fleet.change(left_s)
        finally:
            self.waiting -= 1

    def _count(self, worker_id: str) -> int:
        return self._directory.count(worker_id) + self._coming[worker_id]

    def _on_their_way(self, worker_id: str) -> int:
        """Sessions that the worker has not heard of."""
        return self._directory.untold.coming(worker_id) + self._coming[worker_id]

    def _why_none(self) -> str:
        failure = self._fleet.last_failure
        return f"no worker is ready; the last one failed to start: {failure}" if failure else "no worker is ready"
