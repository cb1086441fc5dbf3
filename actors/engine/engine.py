"""The engine: three verbs over plain data. No I/O, no clock, no threads; time is an argument.

    handle(message, now)        a message or an effect's result came in
    plan(now)                   what to compute in the next step
    commit(plan, result, now)   what came of a step; plans commit in the order they were made

`handle` and `commit` return what should leave the worker: events for ingresses and effects for the shell; what planning
asks for is in `take_output()`. `expire(now)` lets clocks ring; call it before `plan`, and no later than
`next_deadline()`.
"""

from __future__ import annotations

from collections import deque

from actors.engine.aborts import Aborts
from actors.engine.branching import Branching
from actors.engine.clocks import Clock
from actors.engine.closing import Closing
from actors.engine.commits import Commits
from actors.engine.core import Output, new_core
from actors.engine.door import Door
from actors.engine.effects import (
    EffectResult,
    GrammarReady,
    KVLoaded,
    KVLost,
    KVSaved,
    SessionForgotten,
    SessionLoaded,
    TurnsRolledBack,
    TurnStored,
)
from actors.engine.endings import Endings
from actors.engine.entry import Entry
from actors.engine.following import Following
from actors.engine.hibernation import Hibernation
from actors.engine.moving import Moving
from actors.engine.pausing import Pausing
from actors.engine.plan import StepPlan, StepResult
from actors.engine.planner import Planner
from actors.engine.preemption import Preemption
from actors.engine.request import Request, Verdict
from actors.engine.sessions import SessionState
from actors.engine.settings import EngineSettings
from actors.engine.stats import EngineStats, snapshot
from actors.messages import (
    Abort,
    CloseSession,
    Drain,
    FlushCache,
    ForkSession,
    GetSession,
    IngressLost,
    LeaveSession,
    OpenSession,
    Pause,
    Reason,
    ReceiveSession,
    Reply,
    Resume,
    RollbackSession,
    Shutdown,
    Submit,
    ToWorker,
)


class Engine:
    """All bookkeeping of one worker. Not thread-safe: one loop drives it."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.core = new_core(settings)
        self.uncommitted: deque[StepPlan] = deque()
        self._endings = Endings(self.core)
        following = Following(self.core)
        self._entry = Entry(self.core, self._endings)
        self._door = Door(self.core, self._endings, following, self._entry)
        self._aborts = Aborts(self.core, self._endings, following)
        self._closing = Closing(self.core, self._endings)
        self._branching = Branching(self.core, self._endings)
        self._hibernation = Hibernation(self.core)
        self._moving = Moving(self.core, self._endings, self._hibernation)
        self._commits = Commits(self.core, self._endings)
        preemption = Preemption(self.core)
        self._planner = Planner(self.core, self._hibernation, preemption)
        self._pausing = Pausing(self.core, self._aborts, preemption)

    def handle(self, message: ToWorker | EffectResult, now: float) -> list[Output]:
        """Take one message. A caller's mistake is answered by an event, never by an exception."""
        match message:
            case Submit():
                self._door.submit(message, now)
            case Abort():
                report = self._aborts.abort(message, now)
                if message.ask:
                    self.core.out.append(Reply(ask=message.ask, value=report))
            case TurnStored():
                self._endings.stored(message, now)
            case SessionLoaded():
                session = self._closing.loaded(message, now)
                if session is not None:
                    self._branching.loaded(session)
                    self._door.loaded(session, now)
            case TurnsRolledBack():
                session = self._branching.rolled_back(message, now)
                if session is not None:
                    self._door.loaded(session, now)
            case GrammarReady():
                self._entry.compiled(message, now)
            case ReceiveSession():
                self._moving.receive(message, now)
            case KVSaved():
                self._hibernation.saved(message, now)
                self._moving.saved(message.session, now)
            case KVLoaded():
                self._hibernation.loaded(message, now)
            case KVLost():
                self._hibernation.lost(message)
            case SessionForgotten():
                self._closing.forgotten(message, now)
            case OpenSession():
                self._closing.open(message, now)
            case CloseSession():
                self._closing.close(message, now)
            case ForkSession():
                self._branching.fork(message, now)
            case RollbackSession():
                self._branching.rollback(message, now)
            case GetSession():
                self._closing.get(message, now)
            case FlushCache():
                self._hibernation.flush()
                self.core.out.append(Reply(ask=message.ask, value=self.core.kv.flush()))
            case Drain():
                self._door.draining = True
                self.core.out.append(Reply(ask=message.ask, value=True))
            case Pause():
                self._pausing.pause(message, now)
            case Resume():
                self._pausing.resume(message)
            case LeaveSession():
                self._moving.leave(message, now)
            case IngressLost():
                self._aborts.abort_ingress(message.ingress, now)
            case Shutdown():
                self._door.closed_for = message.reason
                self._aborts.abort_everything(message.reason, now)
        return self._settle(now)

    def expire(self, now: float) -> list[Output]:
        """Let every clock that is due ring (rules C1–C4)."""
        self.core.tombstones.expire(now)
        self.core.ended.expire(now)
        self.core.left.expire(now)
        for clock, uid in self.core.clocks.take_due(now):
            if clock is Clock.IDLE:
                self._closing.idle_expired(uid, now)
            else:
                self._ring(clock, self.core.requests.by_uid(uid), now)
        return self._settle(now)

    def plan(self, now: float) -> StepPlan | None:
        """The next step's work; None when nothing can be computed, or `depth` more steps than one are in flight."""
        if self.core.paused or len(self.uncommitted) > self.settings.depth:
            return None
        plan = self._planner.plan(now)
        if plan is not None:
            self.uncommitted.append(plan)
        return plan

    def take_output(self) -> list[Output]:
        """What planning has asked of the shell. Call it after `plan`."""
        return self.core.take_output()

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[Output]:
        """Settle the oldest step in flight: tokens go out, ends are decided, pages become shareable or come back."""
        if not self.uncommitted or self.uncommitted[0] is not plan:
            raise AssertionError("plans commit in the order they were made")
        self.uncommitted.popleft()
        self._commits.commit(plan, result, now)
        return self._settle(now)

    def fail(self, plan: StepPlan, message: str, now: float) -> list[Output]:
        """A whole step broke: everything it named ends `internal`; the worker lives on."""
        failed = {item.uid: message for item in plan.each()}
        return self.commit(plan, StepResult(sampled={}, failed=failed), now)

    def next_deadline(self) -> float | None:
        """When `expire` has to be called at the latest. None: nothing is timed."""
        return self.core.clocks.next()

    @property
    def has_work(self) -> bool:
        """Whether `plan` may have something to do."""
        return not self.core.paused and bool(self.core.requests.num_waiting or self.core.requests.num_running)

    @property
    def num_live(self) -> int:
        """Requests whose terminal event is still to come."""
        return self.core.requests.num_live

    def snapshot(self) -> EngineStats:
        return snapshot(self.core, self._hibernation.counts)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _ring(self, clock: Clock, request: Request | None, now: float) -> None:
        if request is None or not request.can_be_aborted:
            return
        if clock is Clock.DEADLINE:
            verdict = Verdict.abort(Reason.DEADLINE, "the request's deadline passed")
        elif clock is Clock.RUNNING:
            verdict = Verdict.abort(Reason.RUNNING_TIMEOUT, "the request ran for too long")
        elif request.first_forward_at is None:
            verdict = Verdict.abort(Reason.WAITING_TIMEOUT, "the request waited for too long")
        else:
            return
        self._endings.decide(request, verdict, now)

    def _settle(self, now: float) -> list[Output]:
        """Let sessions whose lease was cleared go on: finish a close, or start the next queued turn."""
        self._pausing.settle(len(self.uncommitted), now)
        while self.core.free_sessions:
            session = self.core.free_sessions.pop(0)
            if session.state is SessionState.CLOSING:
                self._closing.advance(session, now)
            while session.state is SessionState.IDLE and session.queue:
                self._door.next_turn(session, now)
        self._hibernation.save_ahead()
        return self.core.take_output()
