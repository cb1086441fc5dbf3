"""Giving a session to another worker: when its owner is dead (rule T4), is being drained (T5), or is hot (P3)."""

from __future__ import annotations

import logging

from actors.messages import GetSession, LeaveSession, SessionInfo
from actors.ports import WorkerGone
from actors.records import SessionRecord
from cluster.fleet import Fleet
from cluster.placement import Directory
from cluster.runtime import Runtime
from cluster.seats import UNLIMITED, Seats
from cluster.store.offload import OffloadedStore

logger = logging.getLogger("remora.pool")


class Mover:
    """The caller holds the session's lock; the store's epochs guard against everybody else."""

    def __init__(
        self, fleet: Fleet, runtime: Runtime, store: OffloadedStore, directory: Directory, seats: Seats
    ) -> None:
        self._fleet = fleet
        self._runtime = runtime
        self._store = store
        self._directory = directory
        self._seats = seats

    async def stays(self, record: SessionRecord) -> bool:
        """Whether the owner keeps the session: it lives, and is not being drained or has a turn of it.

        A worker that has closed its door starts no turn of an idle session any more, so that one can be taken from it
        without a turn being lost.
        """
        if not await self._fleet.knows_alive(record.owner):
            return False
        return not self._fleet.has_closed(record.owner) or await self._is_busy(record)

    async def leave(self, record: SessionRecord, target: str) -> bool:
        """Have a living owner give up an idle session, and make `target` the owner. False: it keeps it, as a turn runs
        there, or it cannot be reached. Raises what `move` does."""
        message = LeaveSession(
            tenant=record.tenant, session_id=record.session_id, generation=record.generation, epoch=record.epoch
        )
        try:
            if await self._runtime.ask(record.owner, message) is not True:
                return False
        except WorkerGone:
            return False
        return (await self.move(record, target)).owner != record.owner

    async def move(self, record: SessionRecord, target: str | None = None) -> SessionRecord:
        """Give it to `target` if that is ready, else to the worker with most headroom. The limit per worker does not
        count here: an open session stays reachable. Raises SessionUnknown, NoWorker, StoreError."""
        async with self._seats.take(UNLIMITED, target) as owner:
            moved = await self._store.run(
                lambda store: store.acquire(record.tenant, record.session_id, owner=owner, expected_epoch=record.epoch)
            )
            self._directory.put(moved)
        logger.info("session of %s now owned by %s under epoch %d", record.owner, moved.owner, moved.epoch)
        return moved

    async def _is_busy(self, record: SessionRecord) -> bool:
        """Whether a turn runs or waits there. An owner that cannot be reached may have one."""
        try:
            info = await self._runtime.ask(record.owner, GetSession(tenant=record.tenant, session_id=record.session_id))
        except WorkerGone:
            return self._fleet.members.alive(record.owner)
        if not isinstance(info, SessionInfo) or (info.generation, info.epoch) != (record.generation, record.epoch):
            return False
        return info.running_rid is not None or info.queued > 0
