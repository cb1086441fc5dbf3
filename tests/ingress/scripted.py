"""A pool and workers that answer what a test tells them to: complete ports, no engine behind them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from actors.messages import (
    Abort,
    AbortReport,
    Event,
    Finished,
    FlushCache,
    ForkSession,
    GetSession,
    OpenSession,
    Outcome,
    PauseMode,
    Reason,
    SessionClosed,
    SessionMode,
    SessionRolledBack,
    Stage,
    Submit,
    Tokens,
)
from actors.ports import Ask, Member, NoWorker, Placement, WorkerGone
from actors.records import (
    ClaimStatus,
    PutStatus,
    ResultClaim,
    ResultRecord,
    ResultState,
    SessionExists,
    SessionRecord,
    SessionUnknown,
    TurnUnknown,
)

Script = Callable[[Submit], list[Event]]


def tokens(submit: Submit, text: str | bytes, index: int = 0) -> Tokens:
    data = text.encode() if isinstance(text, str) else text
    return Tokens(ingress=submit.ingress, key=submit.key, index=index, ids=tuple(data))


def stopped(submit: Submit, count: int, **fields: object) -> Finished:
    return Finished(
        ingress=submit.ingress,
        key=submit.key,
        outcome=Outcome.STOP,
        prompt_tokens=len(submit.input_ids),
        completion_tokens=count,
        **fields,  # type: ignore[arg-type]
    )


def aborted(submit: Submit, reason: Reason, stage: Stage = Stage.WAITING, **fields: object) -> Finished:
    return Finished(
        ingress=submit.ingress,
        key=submit.key,
        outcome=Outcome.ABORT,
        reason=reason,
        stage=stage,
        **fields,  # type: ignore[arg-type]
    )


def says(text: str) -> Script:
    """A worker that answers every request with this text."""
    return lambda submit: [tokens(submit, text), stopped(submit, len(text.encode()))]


def nothing(submit: Submit) -> list[Event]:
    return []


class ScriptedWorker:
    """`script` makes the events that a submit causes; `push` adds more. Aborts end the request they name, once."""

    def __init__(self, worker_id: str, script: Script = nothing) -> None:
        self.worker_id = worker_id
        self.script = script
        self.submits: list[Submit] = []
        self.aborts: list[Abort] = []
        self.alive = True
        self.refuses_submits = False
        self.submitted = asyncio.Event()
        self.aborted = asyncio.Event()
        self._events: list[Event] = []
        self._news = asyncio.Event()
        self._ended: set[str] = set()

    async def submit(self, message: Submit) -> None:
        if not self.alive or self.refuses_submits:
            raise WorkerGone(self.worker_id)
        self.submits.append(message)
        self.push(*self.script(message))
        self.submitted.set()

    def push(self, *events: Event) -> None:
        for event in events:
            if isinstance(event, Finished):
                self._ended.add(event.key)
        self._events.extend(events)
        self._news.set()

    def die(self) -> None:
        self.alive = False
        self._news.set()

    def tell(self, message: Abort) -> None:
        self.aborts.append(message)
        self.aborted.set()
        for submit in self.submits:
            if submit.key in message.keys and submit.key not in self._ended:
                self.push(aborted(submit, message.reason, Stage.DECODE))

    async def ask(self, message: Ask) -> object:
        if not self.alive:
            raise WorkerGone(self.worker_id)
        if isinstance(message, Abort):
            self.aborts.append(message)
            return AbortReport(unknown=message.rids)
        if isinstance(message, (GetSession, OpenSession, ForkSession)):
            return None
        return 0 if isinstance(message, FlushCache) else SessionClosed(known=True)

    async def poll(self, ingress_id: str) -> list[Event]:
        if not self._events and self.alive:
            try:
                await asyncio.wait_for(self._news.wait(), 1.0)
            except asyncio.TimeoutError:
                return []
        if self._events:
            events, self._events = self._events, []
            self._news.clear()
            return events
        if not self.alive:
            raise WorkerGone(self.worker_id)
        return []

    async def stats(self) -> dict[str, object]:
        return {"id": self.worker_id}


class ScriptedPool:
    """Owns sessions in a dictionary; places them on the first living worker."""

    def __init__(self, *workers: ScriptedWorker) -> None:
        self.workers = {worker.worker_id: worker for worker in workers}
        self.sessions: dict[str, SessionRecord] = {}
        self.places = 0
        self.wakes = 0
        self.rollouts = 0
        self.pauses: list[PauseMode | None] = []
        """What was asked for; None: to go on."""
        self.max_sessions: list[int | None] = []
        """The limit that each open and fork came with."""
        self.ready = True
        self.rollback = SessionRolledBack(reason=Reason.PARENT_UNKNOWN, message="the session has no such turn")
        self._generation = 0
        self.results: dict[tuple[str, str], ResultRecord] = {}

    async def members(self) -> list[Member]:
        return [Member(w.worker_id, "READY", 0) for w in self.workers.values() if w.alive and self.ready]

    async def wake(self) -> None:
        self.wakes += 1

    def worker(self, worker_id: str) -> ScriptedWorker:
        return self.workers[worker_id]

    async def open_session(
        self,
        tenant: str,
        session_id: str,
        *,
        mode: SessionMode,
        idle_timeout_s: float | None,
        capacity_tokens: int | None,
        max_sessions: int | None = None,
    ) -> Placement:
        self.max_sessions.append(max_sessions)
        if session_id in self.sessions:
            raise SessionExists(session_id)
        self._generation += 1
        record = SessionRecord(
            tenant=tenant,
            session_id=session_id,
            generation=self._generation,
            epoch=1,
            owner=self._living(),
            mode=mode,
            idle_timeout_s=idle_timeout_s,
            capacity_tokens=capacity_tokens,
            turns=0,
            tokens=0,
            last_active_at=0.0,
        )
        self.sessions[session_id] = record
        return Placement(record.owner, record)

    async def claim_result(self, tenant: str, key: str, *, digest: bytes, owner: str) -> ResultClaim:
        """Every key is free."""
        record = ResultRecord(state=ResultState.RUNNING, digest=digest, owner=owner, until=0.0)
        return ResultClaim(status=ClaimStatus.CLAIMED, record=record)

    async def put_result(
        self,
        tenant: str,
        key: str,
        *,
        digest: bytes,
        owner: str,
        body: bytes,
        ttl_s: float | None = None,
        replace: bool = False,
    ) -> PutStatus:
        self.results[tenant, key] = ResultRecord(
            state=ResultState.DONE, digest=digest, owner=owner, until=math.inf, body=body
        )
        return PutStatus.STORED

    async def get_result(self, tenant: str, key: str) -> ResultRecord | None:
        return self.results.get((tenant, key))

    async def release_result(self, tenant: str, key: str, *, owner: str) -> bool:
        return True

    async def place(self, tenant: str, session_id: str, *, avoid: str | None = None) -> Placement:
        self.places += 1
        record = await self.get_session(tenant, session_id)
        if not self.workers[record.owner].alive:
            record = self.move(session_id, self._living())
        return Placement(record.owner, record)

    def move(self, session_id: str, owner: str) -> SessionRecord:
        old = self.sessions[session_id]
        fields = {name: getattr(old, name) for name in SessionRecord.__dataclass_fields__}
        fields.update(owner=owner, epoch=old.epoch + 1)
        self.sessions[session_id] = SessionRecord(**fields)
        return self.sessions[session_id]

    async def close_session(self, tenant: str, session_id: str, *, abort_running: bool) -> object:
        await self.get_session(tenant, session_id)
        del self.sessions[session_id]
        return SessionClosed(known=True)

    async def fork_session(
        self, tenant: str, session_id: str, *, source_id: str, turn: str | None, max_sessions: int | None = None
    ) -> Placement:
        """Nothing here ever commits a turn."""
        self.max_sessions.append(max_sessions)
        await self.get_session(tenant, source_id)
        if session_id in self.sessions:
            raise SessionExists(session_id)
        raise TurnUnknown(turn or "")

    async def rollback_session(self, tenant: str, session_id: str, *, turn: str) -> SessionRolledBack:
        await self.get_session(tenant, session_id)
        return self.rollback

    async def list_sessions(self, tenant: str, *, after: str, limit: int) -> list[SessionRecord]:
        return [self.sessions[name] for name in sorted(self.sessions) if name > after][:limit]

    async def get_session(self, tenant: str, session_id: str) -> SessionRecord:
        if session_id not in self.sessions:
            raise SessionUnknown(session_id)
        return self.sessions[session_id]

    async def pause(self, mode: PauseMode) -> dict[str, object]:
        self.pauses.append(mode)
        return {"paused": True, "workers": [], "unreachable": []}

    async def resume(self) -> dict[str, object]:
        self.pauses.append(None)
        return {"paused": False, "workers": [], "unreachable": []}

    async def rollout(self) -> dict[str, object]:
        self.rollouts += 1
        return {"state": "running", "stale_workers": len(self.workers)}

    async def status(self) -> dict[str, object]:
        return {"workers": [await worker.stats() for worker in self.workers.values()], "pool": {}}

    def _living(self) -> str:
        living = [worker.worker_id for worker in self.workers.values() if worker.alive and self.ready]
        if not living:
            raise NoWorker("no worker is ready")
        return living[0]
