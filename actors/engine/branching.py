"""Fork and rollback (rule S12).

A fork is a session of its own from the start: the pool has the store make it, and its history is read as any other's.
What is special is that it shares the full pages of what it has in common with its source.

A rollback makes an earlier turn the head. Its descendants are dropped, as by `replace` (rule S3): in streaming mode
these are all later turns, in tree mode other branches stay. The store is told first; until it answers the session is
LOADING, so that turns that come meanwhile wait, and then go on from the new head.
"""

from __future__ import annotations

from actors.engine.core import Core, start_idle_clock
from actors.engine.effects import RollBackTurns, TurnsRolledBack
from actors.engine.endings import Endings
from actors.engine.introspection import describe
from actors.engine.ownership import session_of
from actors.engine.request import Verdict
from actors.engine.sessions import Session, SessionState
from actors.messages import ForkSession, Reason, Reply, RollbackSession, SessionRolledBack


class Branching:
    def __init__(self, core: Core, endings: Endings) -> None:
        self._core = core
        self._endings = endings

    # -- fork ------------------------------------------------------------------------------------------------------

    def fork(self, message: ForkSession, now: float) -> None:
        """The store has made a fork and we are its owner: read its history."""
        session = session_of(self._core, self._endings, message.tenant, message, now)
        if isinstance(session, Verdict):
            self._core.out.append(Reply(ask=message.ask, value=None))
            return
        source = self._core.sessions.find(message.tenant, message.source_id)
        if source is not None:
            session.forked_from = source.uid
        self._core.out.append(Reply(ask=message.ask, value=describe(self._core, session, now)))

    def loaded(self, session: Session) -> None:
        """A session's history is here. If it is a fork, it shares what its source still holds of the same tokens."""
        source = None if session.forked_from is None else self._core.sessions.by_uid(session.forked_from)
        session.forked_from = None
        if source is None:
            return
        head = session.history.head
        if self._core.kv.share(source.uid, session.uid, session.history.context(head)):
            session.slot_rid = head

    # -- rollback --------------------------------------------------------------------------------------------------

    def rollback(self, message: RollbackSession, now: float) -> None:
        """Refuse, or have the store do it. Refused at once and without a trace while a turn runs."""
        session = session_of(self._core, self._endings, message.tenant, message, now)
        if isinstance(session, Verdict) or session.state is SessionState.LOADING:
            reason = session.reason if isinstance(session, Verdict) else Reason.WORKER_LOST
            text = session.message if isinstance(session, Verdict) else "the session's history is being read"
            again = reason is Reason.WORKER_LOST
            self._answer(message.ask, SessionRolledBack(reason=reason, message=text, ask_again=again))
            return
        refusal = self._refused(session, message.turn)
        if refusal is not None:
            self._answer(message.ask, refusal)
        elif message.turn == session.history.head:
            self._answer(message.ask, SessionRolledBack(info=describe(self._core, session, now)))
        else:
            session.move(SessionState.LOADING, f"rollback to {message.turn!r}", now)
            self._core.out.append(
                RollBackTurns(
                    session=session.uid,
                    ask=message.ask,
                    tenant=session.tenant,
                    session_id=session.session_id,
                    generation=session.generation,
                    epoch=session.epoch,
                    turn=message.turn,
                )
            )

    def rolled_back(self, result: TurnsRolledBack, now: float) -> Session | None:
        """The store answered. Returns the session if it goes on; those who wait in it may come in then."""
        session = self._core.sessions.by_uid(result.session)
        if session is None:
            self._answer(result.ask, _moved())
            return None
        if session.state is not SessionState.LOADING:
            self._answer(result.ask, _closing())
            return None
        if result.stale or result.error:
            self._endings.disown(session, now)
            text = "the session store failed; whether the rollback was done is unknown"
            failed = SessionRolledBack(reason=Reason.INTERNAL, message=text)
            self._answer(result.ask, _moved() if result.stale else failed)
            return None
        dropped = session.history.descendants(result.turn)
        self._cut_slot(session, result.turn, dropped)
        session.history.roll_back(result.turn)
        session.idle_since = now
        session.move(SessionState.IDLE, "rolled back", now)
        start_idle_clock(self._core, session)
        self._answer(result.ask, SessionRolledBack(dropped=len(dropped), info=describe(self._core, session, now)))
        return session

    # -- inside ----------------------------------------------------------------------------------------------------

    def _refused(self, session: Session, turn: str) -> SessionRolledBack | None:
        if session.state is SessionState.CLOSING:
            return _closing()
        running = self._core.requests.by_uid(session.lease.uid) if session.lease else None
        if running is not None:
            text = f"turn {running.submit.rid!r} of this session is running"
            return SessionRolledBack(reason=Reason.SESSION_BUSY, message=text)
        if turn not in session.history:
            return SessionRolledBack(reason=Reason.PARENT_UNKNOWN, message=f"the session has no turn {turn!r}")
        return None

    def _cut_slot(self, session: Session, turn: str, dropped: tuple[str, ...]) -> None:
        """The slot of a turn that is dropped keeps what that turn had in common with the new head. The slot of
        another branch is as good as before."""
        slot_rid = session.slot_rid
        if slot_rid is None or slot_rid not in dropped:
            return
        left = self._core.kv.cut_slot(session.uid, session.history.context(turn))
        session.slot_rid = turn if left else None

    def _answer(self, ask: int, value: SessionRolledBack) -> None:
        self._core.out.append(Reply(ask=ask, value=value))


def _moved() -> SessionRolledBack:
    return SessionRolledBack(reason=Reason.WORKER_LOST, message="the session has changed hands", ask_again=True)


def _closing() -> SessionRolledBack:
    return SessionRolledBack(reason=Reason.SESSION_CLOSING, message="close was asked for this session")
