"""From a request to a worker: placing, submitting, and doing both again until the first token.

`Router` holds what requests share (placements, members, channels). `Running` is one request on its way.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from actors.ingress import finding, placement
from actors.ingress.channel import Channels, spawn
from actors.ingress.errors import ApiError, weights_gone
from actors.ingress.parking import Parking
from actors.ingress.part_meters import Meter
from actors.ingress.running import Running
from actors.messages import Notation, OnBusy, Reason, SessionMode, Stage, Submit, TurnOf
from actors.ports import Member, NoWorker, Placement, PoolAway, PoolPort, SessionLimit, WeightsGone
from actors.records import SessionExists, SessionUnknown, StoreError
from configs import ClusterConfig, TimeoutConfig

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_CACHED_PLACEMENTS = 100_000
MAX_STALE_S = 30.0
POOL_ANSWER_S = 10.0
POOL_SOON_S = 1.0
ASK_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUse:
    """What a request asks of a session: everything of `TurnOf` that the caller decides, and how to open it."""

    session_id: str
    mode: SessionMode | None = None
    from_head: bool = True
    parent: str | None = None
    replace: bool = False
    drop_previous_output: bool = False
    offset: int | None = None
    on_busy: OnBusy = OnBusy.REJECT
    create: bool = False
    idle_timeout_s: float | None = None
    capacity_tokens: int | None = None
    whole: bool = False
    stem: str = ""
    reply: str = ""
    reasoning: str = ""
    calls: tuple[str, ...] = ()
    notation: Notation | None = None
    behind: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A request ready to be placed. `submit` has no key, ingress or turn yet: each attempt has its own.

    `affinity`: for requests without a session, what they share a prefix by (rule P5).
    `turn_refused`: the messages can only begin a conversation; when the session has history, this is why not.
    `resume`: should its worker be lost after the first token, another one goes on (rule T4).
    """

    submit: Submit
    session: SessionUse | None = None
    affinity: str | None = None
    turn_refused: str = ""
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """Where an attempt goes. `cached`: decided by what this ingress remembered, which may be old."""

    worker_id: str
    turn: TurnOf | None = None
    cached: bool = False


class Router:
    """Places requests. Raises ApiError for what no retry can mend, NoWorker and WorkerGone for what one may.

    `park_s`: how long a request without a waiting timeout looks for a worker; by default as long as it takes to find
    out that one is dead, and to start another.
    """

    def __init__(
        self,
        pool: PoolPort,
        *,
        cluster: ClusterConfig,
        timeouts: TimeoutConfig,
        park_s: float | None = None,
        max_sessions: Callable[[str], int | None] = lambda tenant: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ingress_id = f"ingress-{uuid.uuid4().hex[:12]}"
        self.pool = pool
        self.channels = Channels(pool, self.ingress_id, patience_s=cluster.dead_s)
        self.timeouts = timeouts
        self.park_s = cluster.dead_s + cluster.start_timeout_s if park_s is None else park_s
        self.parking = Parking(self._has_ready_worker)
        self.submit_s = cluster.dead_s
        self.max_sessions = max_sessions
        self.clock = clock
        self.running: set[Running] = set()
        self._members_ttl_s = cluster.heartbeat_s
        self._members: list[Member] = []
        self._members_at: float | None = None
        self._stopped = False
        self._refreshing: asyncio.Task[None] | None = None
        self._placements: OrderedDict[tuple[str, str], Placement] = OrderedDict()

    def start(self, call: Call, meter: Meter, on_retry: Callable[[], None]) -> Running:
        """Raises ApiError once `stop` was called."""
        if self._stopped:
            raise ApiError(Reason.SHUTDOWN, "The server is shutting down.", stage=Stage.ROUTING)
        return Running(self, call, meter, on_retry)

    async def members(self, *, fresh: bool = False) -> list[Member]:
        """The workers. A list older than a heartbeat is refreshed behind the caller's back, so that a pool that is
        slow or restarting delays nobody; one older than `MAX_STALE_S` is no use, and `fresh` wants none."""
        age_s = self._members_age_s()
        if fresh or age_s > MAX_STALE_S:
            await asyncio.shield(self._refresh())
        elif age_s >= self._members_ttl_s:
            self._refresh()
        return self._members

    async def reachable_workers(self) -> list[str]:
        """Every worker this ingress knows a way to, whether or not the pool answers."""
        try:
            members = await asyncio.wait_for(self.members(fresh=True), POOL_SOON_S)
        except (asyncio.TimeoutError, NoWorker):
            members = self.known_members()
        return sorted({member.worker_id for member in members} | set(self.channels.open_lines()))

    def known_members(self) -> list[Member]:
        """The last list heard of, if it is recent enough to mean anything."""
        return self._members if self._members_age_s() <= MAX_STALE_S else []

    def _heard_of(self) -> set[str]:
        """Workers that this ingress knows a way to, however long ago it heard of them."""
        return {member.worker_id for member in self._members} | set(self.channels.open_lines())

    def weights_of(self, worker_id: str | None) -> str:
        """Version of a worker's weights, as the last list of workers said."""
        return next((member.weights for member in self._members if member.worker_id == worker_id), "")

    def _members_age_s(self) -> float:
        return math.inf if self._members_at is None else self.clock() - self._members_at

    def _refresh(self) -> asyncio.Task[None]:
        """Ask the pool, once for all who want to know."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = spawn(self._fetch_members())
            self._refreshing.add_done_callback(_log_failure)
        return self._refreshing

    async def _fetch_members(self) -> None:
        try:
            self._members = await asyncio.wait_for(self.pool.members(), POOL_ANSWER_S)
        except asyncio.TimeoutError:
            raise NoWorker("the pool does not answer") from None
        self._members_at = self.clock()

    async def target(self, call: Call, avoid: str | None) -> Target:
        """Where the next attempt goes; `avoid` is the worker that the last one failed on."""
        if call.session is None:
            return await self._stateless(call.affinity, avoid)
        tenant, use = call.submit.tenant, call.session
        known = self._placements.get((tenant, use.session_id)) if avoid is None else None
        found = known or await self._find(tenant, use, avoid)
        self.remember(found)
        _check_mode(found, use)
        return Target(found.worker_id, _turn_of(found, call), cached=known is not None)

    def remember(self, found: Placement) -> None:
        key = (found.session.tenant, found.session.session_id)
        self._placements[key] = found
        self._placements.move_to_end(key)
        if len(self._placements) > MAX_CACHED_PLACEMENTS:
            self._placements.popitem(last=False)

    def forget(self, tenant: str, session_id: str) -> None:
        self._placements.pop((tenant, session_id), None)

    @property
    def cached_placements(self) -> int:
        return len(self._placements)

    async def stop(self) -> None:
        """End every request with `Reason.SHUTDOWN`, then the channels."""
        self._stopped = True
        for running in list(self.running):
            running.end_here(Reason.SHUTDOWN, "The server is shutting down.")
        if self._refreshing is not None:
            self._refreshing.cancel()
        await self.parking.stop()
        await self.channels.stop()

    async def _stateless(self, affinity: str | None, avoid: str | None) -> Target:
        members = placement.ready(await self.members(fresh=avoid is not None))
        others = [member for member in members if member.worker_id != avoid]
        mine = self.channels.open_lines()
        loads = placement.loads(others or members, self.ingress_id, mine)
        worker_id = placement.choose(affinity, loads)
        if worker_id is None:
            raise NoWorker("no worker is ready")
        return Target(worker_id)

    async def _has_ready_worker(self) -> bool:
        """Raises NoWorker when the pool cannot be reached."""
        if placement.ready(await self.members(fresh=True)):
            return True
        await self.pool.wake()
        return False

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The pool's answer to something that takes a worker, asked again until one is ready or the time is over that
        a request may wait for one. Raises NoWorker, and what `ask` does."""
        give_up_at = self.clock() + (self.timeouts.waiting_s or self.park_s)
        while True:
            try:
                return await ask()
            except (WeightsGone, PoolAway):  # The pool may have done it: asked again, it would say that it is there.
                raise
            except NoWorker:
                if self.clock() >= give_up_at:
                    raise
            await asyncio.sleep(ASK_AGAIN_S)

    async def _find(self, tenant: str, use: SessionUse, avoid: str | None) -> Placement:
        if self._members_age_s() >= self._members_ttl_s:
            self._refresh()  # For the day on which the pool cannot be asked.
        if use.create and avoid is None:
            try:
                return await self.open_session(tenant, use.session_id, use)
            except SessionExists:
                pass  # The worker decides whether it has history (rule S14).
        try:
            return await finding.place(self.pool, tenant, use.session_id, avoid=avoid, workers=self._heard_of)
        except SessionUnknown:
            raise ApiError(
                Reason.SESSION_UNKNOWN,
                "No session of this id is open. Open it with POST /v1/sessions, or set `session.create`.",
                param="session.id",
                stage=Stage.ROUTING,
            ) from None
        except WeightsGone as gone:
            raise weights_gone(gone) from None
        except StoreError as error:
            raise store_failed() from error

    async def open_session(self, tenant: str, session_id: str, use: SessionUse) -> Placement:
        """Raises SessionExists, NoWorker, ApiError."""
        try:
            found = await self.pool.open_session(
                tenant,
                session_id,
                mode=use.mode or SessionMode.TREE,
                idle_timeout_s=use.idle_timeout_s,
                capacity_tokens=use.capacity_tokens,
                max_sessions=self.max_sessions(tenant),
            )
        except SessionLimit as error:
            raise ApiError(Reason.SESSION_CAPACITY, str(error), param="session", stage=Stage.ROUTING) from None
        except StoreError as error:
            raise store_failed() from error
        self.remember(found)
        return found


def _log_failure(refresh: asyncio.Task[None]) -> None:
    if not refresh.cancelled() and refresh.exception() is not None:
        log.warning("the pool could not be asked for its workers: %s", refresh.exception())


def store_failed() -> ApiError:
    message = "The session store cannot be reached, so the session's history cannot be had. Please try again."
    return ApiError(Reason.INTERNAL, message, stage=Stage.ROUTING)


def _check_mode(found: Placement, use: SessionUse) -> None:
    if use.mode is not None and found.session.mode is not use.mode:
        message = f"This session is open in mode {found.session.mode.value!r}."
        raise ApiError(Reason.INVALID, message, param="session.mode", stage=Stage.ROUTING)


def _turn_of(found: Placement, call: Call) -> TurnOf:
    use = call.session
    assert use is not None
    return TurnOf(
        session_id=use.session_id,
        generation=found.session.generation,
        epoch=found.session.epoch,
        from_head=use.from_head,
        parent=use.parent,
        replace=use.replace,
        drop_previous_output=use.drop_previous_output,
        offset=use.offset,
        on_busy=use.on_busy,
        create=use.create or bool(call.turn_refused),
        whole=use.whole,
        stem="" if call.turn_refused else use.stem,
        reply=use.reply,
        reasoning=use.reasoning,
        calls=use.calls,
        notation=use.notation,
        behind=use.behind,
    )
