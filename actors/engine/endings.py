"""The one way a request ends (rules E1, T1): decided, stored if it is a turn, told, and its pages returned.

decide ──turn that stopped──▶ COMMITTING ──stored──▶ finish ──▶ STOPPING ──last plan commits──▶ ENDED
   └────everything else──────────────────────────────▶ finish ──────no plan names it──────────▶ ENDED
"""

from __future__ import annotations

from dataclasses import replace

from actors.engine.core import Core, forget_image, start_idle_clock
from actors.engine.effects import ReleaseGrammar, StoreTurn, TurnStored
from actors.engine.request import Request, RequestState, Verdict
from actors.engine.sessions import Session, SessionState
from actors.messages import Finished, Outcome, Reason, Stage, Tokens
from actors.records import CommitStatus, TurnCommit, TurnRecord


class Endings:
    """Every path to a terminal event goes through `_finish`, by way of `decide`, `refuse`, `replay` or `stored`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def refuse(self, request: Request, verdict: Verdict, now: float, *, redirect: bool = False) -> None:
        """End a request at the door: no queue, no forward pass, nothing changed (rule S7)."""
        self._finish(request, verdict, Stage.ROUTING, now, redirect=redirect)

    def decide(self, request: Request, verdict: Verdict, now: float) -> None:
        """End a live request. A turn that stopped by itself is told as ended only when the store has it."""
        if request.turn is None or verdict.outcome is Outcome.ABORT:
            self._finish(request, verdict, request.stage, now)
            return
        self._core.requests.leave_queues(request)
        request.verdict = verdict
        request.move(RequestState.COMMITTING, verdict.outcome.value, now)
        session = request.turn.session
        commit = TurnCommit(
            tenant=session.tenant,
            session_id=session.session_id,
            generation=session.generation,
            epoch=session.epoch,
            turn=request.turn.record(request, verdict),
            tokens=len(request.tokens),
        )
        self._core.out.append(StoreTurn(session=session.uid, uid=request.uid, commit=commit))

    def stored(self, result: TurnStored, now: float) -> None:
        """The store answered. Only now does the turn become history (rule S2) and the client hear of it (T1)."""
        request = self._core.requests.by_uid(result.uid)
        if request is None or request.state is not RequestState.COMMITTING:
            return
        if request.turn is None or request.verdict is None:
            raise AssertionError("a request that commits is a decided turn")
        session = request.turn.session
        if result.stale:
            text = "another worker owns this session now; the turn was not stored"
            self._finish(request, Verdict.abort(Reason.WORKER_LOST, text), request.stage, now)
            self.disown(session, now)
        elif result.error:
            text = "the session store failed; whether this turn was stored is unknown"
            self._finish(request, Verdict.abort(Reason.INTERNAL, text), request.stage, now)
            self.disown(session, now)
        elif result.full is not None:
            self._finish(request, over_its_cap(result.full), request.stage, now)
        else:
            session.history.commit(request.turn.record(request, request.verdict), request.context)
            if self._core.kv.has_table(request.uid) and session.state is not SessionState.CLOSED:
                self._core.kv.keep(request.uid, session.uid, min(request.computed, len(request.tokens)))
                session.slot_rid = request.submit.rid
            elif session.slot_rid not in session.history:
                self._core.kv.drop_slot(session.uid)
            self._finish(request, request.verdict, request.stage, now)

    def replay(self, request: Request, record: TurnRecord, context: list[int], now: float) -> None:
        """Answer with the stored result of a turn that was committed before (rule T2)."""
        request.tokens = context
        request.prompt_len = len(context) - len(record.output_ids)
        request.cached_tokens = record.cached_tokens
        submit = request.submit
        told = len(submit.resumed_ids)  # A part of this very result, if the worker died between storing and telling.
        if record.output_ids:
            rest = record.output_ids[told:]
            self._core.out.append(Tokens(ingress=submit.ingress, key=submit.key, index=told, ids=rest))
            for follower in request.followers:
                event = Tokens(ingress=follower.ingress, key=follower.key, index=0, ids=record.output_ids)
                self._core.out.append(event)
        verdict = Verdict(record.outcome, matched=record.matched)
        self._finish(request, verdict, Stage.ROUTING, now, replay_of=record.number)

    def returned(self, request: Request, now: float) -> None:
        """The last plan that named an ended request has committed: its pages come back."""
        self._give_back(request)
        request.move(RequestState.ENDED, "last plan committed", now)
        self._forget(request)
        if request.turn is not None:
            request.turn.session.stopping -= 1
            self._core.free_sessions.append(request.turn.session)

    def disown(self, session: Session, now: float) -> None:
        """Forget a session that may have changed behind our back; its next turn reads it from the store again."""
        if session.state not in (SessionState.CLOSED, SessionState.CLOSING):
            self.drop(session, "disowned", now)

    def drop(self, session: Session, cause: str, now: float) -> None:
        """End what runs or waits in a session, and forget it, whatever state it is in."""
        for queued in list(session.queue):
            moved = Verdict.abort(Reason.WORKER_LOST, "the session is being placed anew")
            self.refuse(queued, moved, now, redirect=True)
        if session.lease is not None:
            running = self._core.requests.by_uid(session.lease.uid)
            if running is not None and running.can_be_aborted:
                text = "another worker owns this session now"
                self._finish(running, Verdict.abort(Reason.WORKER_LOST, text), running.stage, now)
        self._core.kv.drop_slot(session.uid)
        forget_image(self._core, session.uid)
        self._core.sessions.retire(session, cause, now)

    def _finish(
        self,
        request: Request,
        verdict: Verdict,
        stage: Stage,
        now: float,
        *,
        redirect: bool = False,
        replay_of: int = 0,
    ) -> None:
        core = self._core
        core.requests.leave_queues(request)
        if request.parked_in is not None:
            request.parked_in.queue.remove(request)
            request.parked_in = None
        end = terminal(request, verdict, stage, redirect=redirect, replay_of=replay_of)
        tell_end(core, end, stage, now)
        for follower in request.followers:
            heard = max(request.num_output, follower.told)  # Not what the first caller had from elsewhere.
            end = replace(end, key=follower.key, ingress=follower.ingress, completion_tokens=heard)
            tell_end(core, end, stage, now)
        core.requests.answered(request)
        for name in request.names:
            core.ended.add(name, now)
        reason = verdict.reason.value if verdict.reason else ""
        core.forecast.learn(request, verdict.outcome)
        if request.turn is not None:
            self._end_lease(request, now)
        if request.inflight:
            request.move(RequestState.STOPPING, reason or verdict.outcome.value, now)
            if request.turn is not None:
                request.turn.session.stopping += 1
            return
        self._give_back(request)
        request.move(RequestState.ENDED, reason or verdict.outcome.value, now)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        self._core.requests.forget(request)
        if request.grammar_asked:
            self._core.out.append(ReleaseGrammar(uid=request.uid))

    def _end_lease(self, request: Request, now: float) -> None:
        if request.turn is None:
            return
        session = request.turn.session
        if self._core.sessions.clear(session, request.uid, now):
            self._core.free_sessions.append(session)
            start_idle_clock(self._core, session)

    def _give_back(self, request: Request) -> None:
        if self._core.kv.has_table(request.uid):
            self._core.kv.release(request.uid)


def tell_end(core: Core, end: Finished, stage: Stage, now: float) -> None:
    """The one terminal event of one attempt (rule E1): counted (rule E6), and remembered in case it comes again."""
    core.out.append(end)
    core.ended.add(end.key, now)
    reason = end.reason.value if end.reason else ""
    core.totals.ends[(end.outcome.value, reason, stage.value)] += 1


def terminal(
    request: Request, verdict: Verdict, stage: Stage, *, redirect: bool = False, replay_of: int = 0
) -> Finished:
    """What is told of a request's end. `replay_of`: number of the stored turn that this is the answer of."""
    aborted = verdict.outcome is Outcome.ABORT
    committed = request.turn.number if request.turn and not aborted else 0
    return Finished(
        ingress=request.submit.ingress,
        key=request.submit.key,
        outcome=verdict.outcome,
        reason=verdict.reason,
        stage=stage if aborted else None,
        message=verdict.message,
        matched=verdict.matched,
        prompt_tokens=request.prompt_len,
        completion_tokens=max(request.num_output, len(request.submit.resumed_ids)),
        cached_tokens=request.cached_tokens or 0,
        turn=replay_of or committed,
        replayed=bool(replay_of),
        redirect=redirect,
        param=verdict.param,
    )


def over_its_cap(status: CommitStatus) -> Verdict:
    """How a turn ends that the store has no room for (rule S10)."""
    if status is CommitStatus.SESSION_FULL:
        text = "the session's turns have reached store.max_session_bytes; this turn was not stored"
        return Verdict.abort(Reason.SESSION_CAPACITY, text)
    return Verdict.abort(Reason.INTERNAL, "the session store is full (store.max_total_bytes); this turn was not stored")
