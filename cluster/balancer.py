"""Moves idle sessions off hot workers, behind everybody's back (rule P3)."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable

from actors.ports import NoWorker
from actors.records import SessionUnknown, StoreError
from cluster.membership import Membership, Worker
from cluster.placement import Directory, left_behind, load_now
from cluster.rebalance import Heat, Move, rebalance
from configs import RebalanceConfig

logger = logging.getLogger("remora.pool")

AT_ONCE = 8
"""Sessions on the move at the same time."""


class Balancer:
    """`give(move)` moves one session, and says whether it did."""

    def __init__(
        self,
        settings: RebalanceConfig,
        members: Membership,
        directory: Directory,
        give: Callable[[Move], Awaitable[bool]],
    ) -> None:
        self._settings = settings
        self._members = members
        self._directory = directory
        self._give = give
        self._heat = Heat()
        self._going: asyncio.Task[None] | None = None
        self.moved = 0
        """Sessions moved so far."""

    def look(self, now: float) -> None:
        """Begin to move what should move; not while the last moves are still under way."""
        if not self._settings.enabled or (self._going is not None and not self._going.done()):
            return
        ready = {worker.worker_id: worker for worker in self._members.ready() if worker.kept_at is None}
        gone = self._directory.untold.gone
        self._heat, moves = rebalance(
            self._heat,
            {name: load_now(worker, gone(name)) for name, worker in ready.items()},
            lambda name: _resident(ready[name], gone(name)),
            self._directory.keys,
            self._settings,
            now,
        )
        if moves:
            going = self._go(moves)
            self._going = contextvars.Context().run(asyncio.get_running_loop().create_task, going)

    def stop(self) -> None:
        if self._going is not None:
            self._going.cancel()

    async def _go(self, moves: list[Move]) -> None:
        at_once = asyncio.Semaphore(AT_ONCE)

        async def one(move: Move) -> bool:
            async with at_once:
                try:
                    return await self._give(move)
                except (SessionUnknown, StoreError, NoWorker) as error:
                    logger.warning("a session of %s did not move: %r", move.source, error)
                    return False

        done = await asyncio.gather(*(one(move) for move in moves))
        self.moved += sum(done)
        sources = ", ".join(sorted({move.source for move in moves}))
        logger.info("%d of %d sessions moved off %s", sum(done), len(moves), sources)


def _resident(worker: Worker, gone: int) -> int:
    """Sessions whose KV it holds."""
    return round((1 - left_behind(worker, gone)) * int(worker.stats.get("resident_sessions", 0)))
