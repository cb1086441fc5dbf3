"""Closing sessions whose idle time has passed while no worker kept their clock (rule S8).

A worker sees to the sessions that it has in memory. It has not every session it owns: one that has moved without its KV
is read on its next turn, and one that the worker let go of after the store had failed, likewise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.messages import GetSession, ReceiveSession
from actors.ports import WorkerGone
from actors.records import SessionRecord, SessionUnknown
from cluster.fleet import Fleet
from cluster.keyed_locks import KeyedLocks
from cluster.placement import Directory
from cluster.runtime import Runtime
from cluster.store.offload import OffloadedStore

AT_ONCE = 8
"""Sessions looked at at the same time."""


class Expiry:
    """`locks`: of sessions whose owner may change."""

    def __init__(
        self,
        fleet: Fleet,
        runtime: Runtime,
        store: OffloadedStore,
        directory: Directory,
        locks: KeyedLocks,
        wall_clock: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._runtime = runtime
        self._store = store
        self._directory = directory
        self._locks = locks
        self._wall_clock = wall_clock

    async def look(self) -> int:
        """Close those that nobody owns, and have those that a living worker owns in its memory, so that they close
        there when they stay idle. Returns how many were closed. Raises StoreError."""
        now = self._wall_clock()
        late = await self._store.run(lambda store: store.expired(now))
        at_once = asyncio.Semaphore(AT_ONCE)

        async def one(record: SessionRecord) -> bool:
            async with at_once:
                if self._fleet.members.alive(record.owner):
                    await self._remind(record)
                    return False
                return await self._close(record)

        return sum(await asyncio.gather(*(one(record) for record in late)))

    async def _remind(self, record: SessionRecord) -> None:
        """Have the owner read a session that it does not have in memory. One that is there, with a turn perhaps, stays
        as it is."""
        receive = ReceiveSession(
            tenant=record.tenant,
            session_id=record.session_id,
            generation=record.generation,
            epoch=record.epoch,
            parcel="",
            keys=b"",
        )
        try:
            known = await self._runtime.ask(
                record.owner, GetSession(tenant=record.tenant, session_id=record.session_id)
            )
            if known is None:
                await self._runtime.ask(record.owner, receive)
        except WorkerGone:
            return  # It is without an owner at the next look.

    async def _close(self, record: SessionRecord) -> bool:
        key = (record.tenant, record.session_id)
        async with self._locks.hold(key):
            if await self._now(record) != record or await self._fleet.knows_alive(record.owner):
                return False  # Somebody has used it since.
            closed = await self._store.run(
                lambda store: store.close(record.tenant, record.session_id, record.generation, epoch=record.epoch)
            )
        self._directory.remove(key, record.generation)
        return closed

    async def _now(self, record: SessionRecord) -> SessionRecord | None:
        try:
            return await self._store.run(lambda store: store.get(record.tenant, record.session_id))
        except SessionUnknown:
            return None
