"""Giving a session to another worker: when its owner is dead (rule T4), is being drained (T5), or is hot (P3)."""

from __future__ import annotations

import asyncio
import logging
import uuid

from actors.messages import GetSession, LeaveSession, ReceiveSession, SessionInfo, SessionLeft
from actors.ports import WorkerGone
from actors.records import SessionRecord
from cluster.evacuation import Fate
from cluster.fleet import Fleet
from cluster.placement import Directory
from cluster.runtime import Runtime, WorkerSilent
from cluster.seats import UNLIMITED, Seats
from cluster.store.offload import OffloadedStore
from configs import ClusterConfig

logger = logging.getLogger("remora.pool")


class Mover:
    """The caller holds the session's lock; the store's epochs guard against everybody else. `pins`: a session goes only
    where the weights are that its last turn was made with."""

    def __init__(
        self,
        fleet: Fleet,
        runtime: Runtime,
        store: OffloadedStore,
        directory: Directory,
        seats: Seats,
        config: ClusterConfig,
        *,
        pins: bool,
    ) -> None:
        self._fleet = fleet
        self._runtime = runtime
        self._store = store
        self._directory = directory
        self._seats = seats
        self._config = config
        self._pins = pins

    async def stays(self, record: SessionRecord) -> bool:
        """Whether the owner keeps the session: it lives, and is not being drained, nor has the wrong weights or is
        kept for others, or has a turn of it.

        A worker that has closed its door starts no turn of an idle session any more, so that one can be taken from it
        without a turn being lost.
        """
        if not await self._fleet.knows_alive(record.owner):
            return False
        if self._fleet.has_closed(record.owner) or not self._suits(record, record.owner):
            return await self._is_busy(record)
        return True

    def weights_of(self, record: SessionRecord) -> str:
        """The weights that this session is pinned to; empty if any will do."""
        return record.weights if self._pins else ""

    def _suits(self, record: SessionRecord, owner: str) -> bool:
        """Whether a worker is one for this session; one that has not said which weights it has may be."""
        worker = self._fleet.members.get(owner)
        pinned = self.weights_of(record)
        if worker is None or not pinned:
            return worker is None or worker.kept_at is None
        return worker.weights in ("", pinned)

    async def leave(self, record: SessionRecord, target: str | None = None) -> SessionRecord | None:
        """Have a living owner give up an idle session, and make `target` the owner, or whoever has most headroom. None:
        it keeps it, as a turn runs there, or it cannot be reached. Raises what `move` does."""
        parcel = uuid.uuid4().hex
        message = LeaveSession(
            tenant=record.tenant,
            session_id=record.session_id,
            generation=record.generation,
            epoch=record.epoch,
            parcel=parcel,
            max_kv_bytes=self._config.move_kv_bytes,
        )
        weights = self.weights_of(record)
        # First: nobody gives up what nobody takes.
        async with self._seats.take(UNLIMITED, target, weights=weights, but=record.owner) as owner:
            try:
                left = await self._runtime.ask(record.owner, message)
            except WorkerGone:
                return None
            if not isinstance(left, SessionLeft) or not left.left:
                return None
            moved = await self._acquire(record, owner)
        if left.keys and moved.owner != record.owner:
            await self._bring_kv(record, moved, parcel, left.keys)
        return moved

    async def take(self, record: SessionRecord) -> SessionRecord:
        """Away from an owner that does not keep it: with its KV from one that lives, else as it is in the store. Raises
        what `move` does."""
        if self._fleet.members.alive(record.owner):
            moved = await self.leave(record)
            if moved is not None:
                return moved
        return await self.move(record)

    async def has_given_up(self, record: SessionRecord) -> bool:
        """Whether a living owner that has refused a turn does not have the session in memory. It may have given it up
        to a pool that died, or met a store that failed, before there was another owner; it takes no turn of that epoch
        for a while then, but those of a new one."""
        try:
            info = await self._runtime.ask(record.owner, GetSession(tenant=record.tenant, session_id=record.session_id))
        except WorkerGone:
            return False
        return info is None

    async def sent_off(self, record: SessionRecord) -> Fate:
        """From a worker that is being drained, or kept for its weights, if nothing runs there. Raises what `move`
        does."""
        owner = self._fleet.members.get(record.owner)
        if owner is not None and owner.kept_at is not None and owner.weights == self.weights_of(record):
            return Fate.STAYS
        if await self.leave(record) is not None:
            return Fate.MOVED
        return Fate.BUSY if await self._is_busy(record) else Fate.STAYS

    async def move(self, record: SessionRecord, target: str | None = None) -> SessionRecord:
        """Give it to `target` if that is ready, else to the worker with most headroom. The limit per worker does not
        count here: an open session stays reachable. Raises SessionUnknown, NoWorker, WeightsGone, StoreError."""
        async with self._seats.take(UNLIMITED, target, weights=self.weights_of(record)) as owner:
            return await self._acquire(record, owner)

    async def _acquire(self, record: SessionRecord, owner: str) -> SessionRecord:
        moved = await self._store.run(
            lambda store: store.acquire(record.tenant, record.session_id, owner=owner, expected_epoch=record.epoch)
        )
        self._directory.give(moved)
        logger.info("session of %s now owned by %s under epoch %d", record.owner, moved.owner, moved.epoch)
        return moved

    async def _bring_kv(self, record: SessionRecord, moved: SessionRecord, parcel: str, keys: bytes) -> None:
        """Whatever goes wrong costs a prefill and nothing else."""
        message = ReceiveSession(
            tenant=moved.tenant,
            session_id=moved.session_id,
            generation=moved.generation,
            epoch=moved.epoch,
            parcel=parcel,
            keys=keys,
        )

        async def bring() -> None:
            if await self._runtime.carry(record.owner, moved.owner, parcel):
                await self._runtime.ask(moved.owner, message)

        try:
            await asyncio.wait_for(bring(), self._config.move_kv_s)
        except (WorkerGone, WorkerSilent, asyncio.TimeoutError) as error:
            logger.warning("the KV of a session stays behind on %s: %r", record.owner, error)

    async def _is_busy(self, record: SessionRecord) -> bool:
        """Whether a turn runs or waits there. An owner that cannot be reached may have one."""
        try:
            info = await self._runtime.ask(record.owner, GetSession(tenant=record.tenant, session_id=record.session_id))
        except WorkerGone:
            return self._fleet.members.alive(record.owner)
        if not isinstance(info, SessionInfo) or (info.generation, info.epoch) != (record.generation, record.epoch):
            return False
        return info.running_rid is not None or info.queued > 0
