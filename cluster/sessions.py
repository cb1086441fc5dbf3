"""Who owns which session: opening, placing, closing and expiring them. The store decides; this asks it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from actors.messages import RollbackSession, SessionClosed, SessionMode, SessionRolledBack
from actors.ports import NoWorker, Placement, SessionLimit, WorkerGone
from actors.records import SessionExists, SessionRecord, SessionStore, SessionUnknown, StoreError, StoreFull
from cluster.closing import Closer
from cluster.evacuation import Fate, see_off
from cluster.expiry import Expiry
from cluster.fleet import Fleet
from cluster.keyed_locks import KeyedLocks
from cluster.moving import Mover
from cluster.placement import Directory, SessionKey
from cluster.quota import Quota, QuotaSpent
from cluster.rebalance import Move
from cluster.runtime import Runtime
from cluster.seats import Seats
from cluster.store.offload import OffloadedStore
from configs import ClusterConfig, SessionConfig

logger = logging.getLogger("remora.pool")

NO_WORKER_WAIT_S = 10.0
"""How long a session waits here for a worker to be ready; its ingress asks again, for as long as it has patience."""
LOST_PAUSE_S = 0.1
SEE_OFF_PAUSE_S = 0.5
"""Between looks at sessions of a drained worker that had a turn the last time."""


class SessionDesk:
    """All calls about one session that change its owner run one after the other; the store's epochs guard against
    anybody else."""

    def __init__(
        self,
        fleet: Fleet,
        runtime: Runtime,
        store: OffloadedStore,
        config: SessionConfig,
        cluster: ClusterConfig,
        *,
        wait_s: float = NO_WORKER_WAIT_S,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory = Directory(fleet.untold)
        self._fleet = fleet
        self._runtime = runtime
        self._store = store
        self._config = config
        self._wait_s = wait_s
        self._wall_clock = wall_clock
        self._locks = KeyedLocks()
        self._seats = Seats(fleet, self.directory, wait_s)
        self._closer = Closer(fleet, runtime, store)
        self._expiry = Expiry(fleet, runtime, store, self.directory, self._locks, wall_clock)
        pins = config.weights == "pin"
        self._mover = Mover(fleet, runtime, store, self.directory, self._seats, cluster, pins=pins)
        self._quota = Quota(self._count)

    async def open(
        self,
        tenant: str,
        session_id: str,
        *,
        mode: SessionMode,
        idle_timeout_s: float | None,
        capacity_tokens: int | None,
        max_sessions: int | None = None,
    ) -> Placement:
        """None for a limit: the configured default. Raises SessionExists, NoWorker, StoreError, SessionLimit."""
        idle = self._config.idle_timeout_s if idle_timeout_s is None else idle_timeout_s
        capacity = capacity_tokens or self._config.capacity_tokens or None

        def make(store: SessionStore, owner: str) -> SessionRecord:
            return store.create(
                tenant,
                session_id,
                owner=owner,
                mode=mode,
                idle_timeout_s=idle,
                capacity_tokens=capacity,
                now=self._wall_clock(),
            )

        return await self._make(tenant, session_id, make, max_sessions)

    async def fork(
        self, tenant: str, session_id: str, *, source_id: str, turn: str | None, max_sessions: int | None = None
    ) -> Placement:
        """Where the source lives, if there is room: its KV is there. Raises what `open` does, SessionUnknown and
        TurnUnknown. The store does it in one step: whoever dies afterwards, the fork is there or it is not."""
        source = (await self.place(tenant, source_id)).session

        def make(store: SessionStore, owner: str) -> SessionRecord:
            return store.fork(
                tenant,
                session_id,
                source_id=source_id,
                source_generation=source.generation,
                turn=turn,
                owner=owner,
                now=self._wall_clock(),
            )

        weights = self._mover.weights_of(source)
        return await self._make(tenant, session_id, make, max_sessions, prefer=source.owner, weights=weights)

    async def rollback(self, tenant: str, session_id: str, *, turn: str) -> SessionRolledBack:
        """Through the owner, which knows whether a turn runs; asked again until it can say, since doing it twice is
        doing it once. Raises SessionUnknown, NoWorker, StoreError."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._wait_s
        record = (await self.place(tenant, session_id)).session
        generation = record.generation
        while record.generation == generation:
            answer = await self._ask_owner_to_roll_back(record, turn)
            if answer is not None and not answer.ask_again:
                return answer
            if loop.time() >= give_up_at:
                raise NoWorker("the session's owner cannot be reached; whether the rollback was done is unknown")
            await asyncio.sleep(LOST_PAUSE_S)
            lost = record.owner if answer is None else None
            record = (await self.place(tenant, session_id, avoid=lost)).session
        raise SessionUnknown(session_id)

    @property
    def parked(self) -> int:
        """Calls that wait for a worker to be ready."""
        return self._seats.waiting

    async def place(self, tenant: str, session_id: str, *, avoid: str | None = None) -> Placement:
        """The session's owner, or a new one if that is dead or leaving. Raises SessionUnknown, NoWorker, WeightsGone,
        StoreError."""
        async with self._locks.hold((tenant, session_id)):
            record = await self.get(tenant, session_id)
            if record.owner == avoid and self._fleet.members.alive(avoid):
                await self._fleet.probe(avoid)
                if await self._mover.has_given_up(record):
                    record = await self._mover.move(record, record.owner)
            while not await self._mover.stays(record):
                record = await self._mover.take(record)
        self.directory.put(record)
        return Placement(record.owner, record)

    async def give(self, move: Move) -> bool:
        """Move an idle session off a hot worker. False: it stays. Raises SessionUnknown, NoWorker, StoreError."""
        async with self._locks.hold(move.key):
            record = await self.get(*move.key)
            return record.owner == move.source and await self._mover.leave(record, move.target) is not None

    async def see_off(self, worker_id: str) -> None:
        """Move the sessions of a worker that is being drained, as soon as each is idle (rule T5). Nothing to do where
        it is the last: they are in the store."""
        if not self._fleet.members.ready():
            return

        async def move(key: SessionKey) -> Fate:
            async with self._locks.hold(key):
                try:
                    record = await self.get(*key)
                    return await self._mover.sent_off(record) if record.owner == worker_id else Fate.STAYS
                except (SessionUnknown, StoreError, NoWorker) as error:
                    logger.warning("a session of %s did not move: %r", worker_id, error)
                    return Fate.STAYS

        moved = await see_off(self.directory, worker_id, move, SEE_OFF_PAUSE_S)
        logger.info("%d sessions of %s have moved", moved, worker_id)

    async def close(self, tenant: str, session_id: str, *, abort_running: bool) -> SessionClosed:
        """Raises SessionUnknown, StoreError. Answers when the owner's memory is free (rule S9)."""
        record = await self.get(tenant, session_id)
        closed = await self._closer.close(record, abort_running=abort_running)
        self.directory.remove((tenant, session_id), record.generation)
        return closed

    async def get(self, tenant: str, session_id: str) -> SessionRecord:
        """Raises SessionUnknown, StoreError."""
        return await self._store.run(lambda store: store.get(tenant, session_id))

    async def list(self, tenant: str, *, after: str, limit: int) -> list[SessionRecord]:
        """Raises StoreError."""
        return await self._store.run(lambda store: store.list_sessions(tenant, after=after, limit=limit))

    async def recount(self, worker_id: str) -> None:
        """Bring the directory up to what the store says this worker owns. Raises StoreError."""
        records = await self._store.run(lambda store: store.owned_by(worker_id))
        if self._fleet.members.alive(worker_id):
            self.directory.replace(worker_id, records)

    async def expire(self) -> int:
        """Close sessions whose idle time passed while nobody owned them. Returns how many. Raises StoreError."""
        return await self._expiry.look()

    @property
    def held(self) -> int:
        """Sessions that are being opened, placed, moved or closed just now."""
        return len(self._locks) + len(self._closer)

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _make(
        self,
        tenant: str,
        session_id: str,
        make: Callable[[SessionStore, str], SessionRecord],
        max_sessions: int | None,
        prefer: str | None = None,
        weights: str = "",
    ) -> Placement:
        """A new session, within the limits, on `prefer` if that has room."""
        async with self._locks.hold((tenant, session_id)):
            limit = self._config.max_per_tenant if max_sessions is None else max_sessions
            try:
                async with (
                    self._quota.place(tenant, limit),
                    self._seats.take(self._config.max_per_worker, prefer, weights=weights) as owner,
                ):
                    record = await self._store.run(lambda store: make(store, owner))
                    self.directory.give(record)
            except StoreFull:
                text = "The fork would take the session, or all sessions, over the store's byte cap."
                raise SessionLimit(text) from None
            except QuotaSpent:
                raise await self._refusal(tenant, session_id, limit) from None
        return Placement(record.owner, record)

    async def _count(self, tenant: str) -> int:
        return await self._store.run(lambda store: store.count(tenant))

    async def _refusal(self, tenant: str, session_id: str, limit: int) -> Exception:
        """Why there can be no session of this name."""
        try:
            await self.get(tenant, session_id)
        except SessionUnknown:
            return SessionLimit(f"This tenant has {limit} sessions open, which is the limit.")
        return SessionExists(session_id)

    async def _ask_owner_to_roll_back(self, record: SessionRecord, turn: str) -> SessionRolledBack | None:
        """None: the owner cannot be reached."""
        message = RollbackSession(
            tenant=record.tenant,
            session_id=record.session_id,
            generation=record.generation,
            epoch=record.epoch,
            turn=turn,
        )
        try:
            answer = await self._runtime.ask(record.owner, message)
        except WorkerGone:
            return None
        assert isinstance(answer, SessionRolledBack)
        return answer
