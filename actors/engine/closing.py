"""Opening, closing and expiring sessions (rules S8, S9, S11)."""

from __future__ import annotations

from actors.engine.core import Core, forget_image, start_idle_clock
from actors.engine.effects import ForgetSession, SessionForgotten, SessionLoaded
from actors.engine.endings import Endings
from actors.engine.history import BrokenHistory, History
from actors.engine.introspection import describe
from actors.engine.request import Request, Verdict
from actors.engine.sessions import Session, SessionState
from actors.messages import CloseSession, GetSession, OpenSession, Reason, Reply, SessionClosed
from actors.records import SessionRecord


class Closing:
    def __init__(self, core: Core, endings: Endings) -> None:
        self._core = core
        self._endings = endings

    def open(self, message: OpenSession, now: float) -> None:
        """The pool created a session and made us its owner."""
        session = self._core.sessions.find(message.tenant, message.session_id)
        wanted = (message.generation, message.epoch)
        if session is not None and (session.generation, session.epoch) < wanted:
            self._make_way(session, now)
            session = None
        if session is None or session.state is SessionState.CLOSED:
            session = self._core.sessions.add(message.tenant, message.session_id, *wanted)
            record = SessionRecord(
                tenant=message.tenant,
                session_id=message.session_id,
                generation=message.generation,
                epoch=message.epoch,
                owner="",
                mode=message.mode,
                idle_timeout_s=message.idle_timeout_s,
                capacity_tokens=message.capacity_tokens,
                turns=0,
                tokens=0,
                last_active_at=0.0,
            )
            self._settle(session, record, History(), now)
        self._core.out.append(Reply(ask=message.ask, value=describe(self._core, session, now)))

    def loaded(self, result: SessionLoaded, now: float) -> Session | None:
        """The store answered. Returns the session if it can be used; otherwise those who waited have been told why."""
        session = self._core.sessions.by_uid(result.session)
        if session is None or session.state is not SessionState.LOADING:
            return None
        record, error = result.record, result.error
        if record is not None and record.epoch == session.epoch and not error:
            try:
                self._settle(session, record, History(result.turns, record.head), now)
                return session
            except BrokenHistory as broken:
                error = str(broken)
        redirect = record is not None and not error
        if error:
            text = f"the session's history could not be read from the store: {error}"
            verdict = Verdict.abort(Reason.INTERNAL, text)
        elif redirect:
            verdict = Verdict.abort(Reason.WORKER_LOST, "the session has changed hands")
        else:
            verdict = Verdict.abort(Reason.SESSION_UNKNOWN, f"no session {session.session_id!r} is open")
        for request in list(session.queue):
            self._endings.refuse(request, verdict, now, redirect=redirect)
        forget_image(self._core, session.uid)
        self._core.sessions.retire(session, verdict.message, now)
        return None

    def get(self, message: GetSession, now: float) -> None:
        session = self._core.sessions.find(message.tenant, message.session_id)
        value = None if session is None else describe(self._core, session, now)
        self._core.out.append(Reply(ask=message.ask, value=value))

    def close(self, message: CloseSession, now: float) -> None:
        session = self._core.sessions.find(message.tenant, message.session_id)
        gone = session is None or session.generation != message.generation
        if session is None or gone or session.state is SessionState.CLOSING:
            self._core.out.append(Reply(ask=message.ask, value=SessionClosed(known=False)))
            return
        session.close_asks.append(message.ask)
        self._begin(session, message.abort_running, "closed", now)

    def idle_expired(self, session_uid: int, now: float) -> None:
        """An idle clock rang. It counts only if the session has been idle since (rule S8)."""
        session = self._core.sessions.by_uid(session_uid)
        if session is None:
            return
        session.idle_clock_set = False
        if session.state is not SessionState.IDLE or not session.idle_timeout_s:
            return
        if session.idle_since + session.idle_timeout_s <= now:
            self._begin(session, False, "idle for too long", now)
        else:
            start_idle_clock(self._core, session)

    def advance(self, session: Session, now: float) -> None:
        """Finish a close once no turn runs and no step in flight names the session's pages."""
        if session.state is not SessionState.CLOSING or session.lease is not None or session.stopping:
            return
        if session.forgetting or session.uid in self._core.kv.transfers:
            return
        session.forgetting = True
        session.freed_tokens = self._core.kv.slot_length(session.uid)
        session.freed_pages = self._core.kv.drop_slot(session.uid)
        forget_image(self._core, session.uid)
        self._core.out.append(
            ForgetSession(
                session=session.uid,
                tenant=session.tenant,
                session_id=session.session_id,
                generation=session.generation,
                epoch=session.epoch,
            )
        )

    def forgotten(self, result: SessionForgotten, now: float) -> None:
        session = self._core.sessions.by_uid(result.session)
        if session is None or session.state is not SessionState.CLOSING:
            return
        self._answer_close(session, known=result.found or bool(result.error), error=result.error)
        self._core.sessions.retire(session, result.error or "forgotten by the store", now)

    def _make_way(self, session: Session, now: float) -> None:
        """A newer session has this id, so that the store has forgotten this one: if it was closing, that is over."""
        if not session.forgetting:
            session.freed_tokens = self._core.kv.slot_length(session.uid)
            session.freed_pages = self._core.kv.drop_slot(session.uid)
        self._endings.drop(session, "a newer session has its id", now)
        self._answer_close(session, known=True)

    def _answer_close(self, session: Session, *, known: bool, error: str = "") -> None:
        closed = SessionClosed(
            known=known,
            turns=len(session.history),
            freed_pages=session.freed_pages,
            freed_tokens=session.freed_tokens,
            error=error,
        )
        for ask in session.close_asks:
            self._core.out.append(Reply(ask=ask, value=closed))

    def _begin(self, session: Session, abort_running: bool, cause: str, now: float) -> None:
        session.move(SessionState.CLOSING, cause, now)
        for queued in list(session.queue):
            self._endings.refuse(queued, Verdict.abort(Reason.SESSION_CLOSING, "the session is closing"), now)
        running = self._running(session)
        if abort_running and running is not None and running.can_be_aborted:
            self._endings.decide(running, Verdict.abort(Reason.SESSION_CLOSED, "the session was closed"), now)
        self._core.free_sessions.append(session)

    def _settle(self, session: Session, record: SessionRecord, history: History, now: float) -> None:
        self._core.sessions.loaded(session, record, history, now)
        start_idle_clock(self._core, session)

    def _running(self, session: Session) -> Request | None:
        return self._core.requests.by_uid(session.lease.uid) if session.lease else None
