"""Closing a session wherever it lives (rule S9): through its owner, or in the store alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from actors.messages import CloseSession, GetSession, SessionClosed, SessionInfo
from actors.ports import WorkerGone
from actors.records import SessionRecord, SessionUnknown
from cluster.fleet import Fleet
from cluster.runtime import Runtime
from cluster.store.offload import OffloadedStore

LOST_PAUSE_S = 0.1
CLOSING = "closing"
"""What a worker says of a session that it is closing."""


class Closer:
    """Each session is closed once: who asks again meanwhile is told that there is none."""

    def __init__(self, fleet: Fleet, runtime: Runtime, store: OffloadedStore) -> None:
        self._fleet = fleet
        self._runtime = runtime
        self._store = store
        self._closing: set[tuple[str, str, int]] = set()

    def __len__(self) -> int:
        """Sessions that are being closed just now."""
        return len(self._closing)

    async def close(self, record: SessionRecord, *, abort_running: bool) -> SessionClosed:
        """Raises SessionUnknown, StoreError. Answers when the owner's memory is free."""
        key = (record.tenant, record.session_id, record.generation)
        if key in self._closing:
            raise SessionUnknown(record.session_id)
        self._closing.add(key)
        try:
            return await self._close(record, abort_running)
        finally:
            self._closing.discard(key)

    async def _close(self, record: SessionRecord, abort_running: bool) -> SessionClosed:
        """Through its owner, or, if that is dead or does not have it in memory, in the store alone; there the epoch
        tells whether somebody has taken the session over meanwhile."""
        turns = record.turns
        current: SessionRecord | None = record
        while current is not None:
            closed = SessionClosed(known=False)
            if await self._fleet.knows_alive(current.owner):
                answer = await self._ask_owner_to_close(current, abort_running)
                if answer is None:
                    await self._fleet.probe(current.owner)
                    await asyncio.sleep(LOST_PAUSE_S)
                    current = await self._same(record)
                    continue
                closed = answer
            if closed.known or await self._forget(current):
                return replace(closed, known=True, turns=closed.turns or turns)
            current = await self._same(record)
        return SessionClosed(known=True, turns=turns)  # An owner that could not be reached has done it.

    async def _ask_owner_to_close(self, record: SessionRecord, abort_running: bool) -> SessionClosed | None:
        """None: the owner cannot be reached, or has just taken the session in. Raises SessionUnknown when it is closing
        the session already."""
        tenant, session_id = record.tenant, record.session_id
        message = CloseSession(
            tenant=tenant, session_id=session_id, generation=record.generation, abort_running=abort_running
        )
        try:
            closed = await self._runtime.ask(record.owner, message)
            assert isinstance(closed, SessionClosed)
            if closed.known:
                return closed
            info = await self._runtime.ask(record.owner, GetSession(tenant=tenant, session_id=session_id))
        except WorkerGone:
            return None
        if not isinstance(info, SessionInfo) or info.generation != record.generation:
            return closed
        if info.state == CLOSING:
            raise SessionUnknown(session_id)
        return None  # It has come into memory since: it is asked again.

    async def _same(self, record: SessionRecord) -> SessionRecord | None:
        """The record as it is now; None when the session is closed, or its id another session's."""
        try:
            now = await self._store.run(lambda store: store.get(record.tenant, record.session_id))
        except SessionUnknown:
            return None
        return now if now.generation == record.generation else None

    async def _forget(self, record: SessionRecord) -> bool:
        """Delete a session that nobody has in memory. False: it is gone, or somebody has just taken it over."""
        return await self._store.run(
            lambda store: store.close(record.tenant, record.session_id, record.generation, epoch=record.epoch)
        )
