"""From the numbers of a placement to the session they mean, which may have to be read from the store first."""

from __future__ import annotations

from typing import Protocol

from actors.engine.core import Core
from actors.engine.effects import LoadSession
from actors.engine.endings import Endings
from actors.engine.request import Verdict
from actors.engine.sessions import Session, SessionState
from actors.messages import Reason


class Placed(Protocol):
    """A message about a session, with the generation and the epoch that its sender knows."""

    @property
    def session_id(self) -> str: ...

    @property
    def generation(self) -> int: ...

    @property
    def epoch(self) -> int: ...


def session_of(core: Core, endings: Endings, tenant: str, placed: Placed, now: float) -> Session | Verdict:
    """The session, in state LOADING if it is not here yet.

    Reason `worker_lost`: the sender's numbers are old, so that it has to place the session anew.
    """
    if core.left.has((tenant, placed.session_id, placed.generation, placed.epoch), now):
        return Verdict.abort(Reason.WORKER_LOST, "the session is changing hands")
    session = core.sessions.find(tenant, placed.session_id)
    wanted = (placed.generation, placed.epoch)
    if session is not None and wanted < (session.generation, session.epoch):
        return Verdict.abort(Reason.WORKER_LOST, "the session has changed hands")
    if session is not None and wanted > (session.generation, session.epoch):
        if session.state is SessionState.CLOSING:
            return Verdict.abort(Reason.SESSION_CLOSING, "the former session of this id is still closing")
        endings.disown(session, now)
        session = None
    if session is None:
        session = core.sessions.add(tenant, placed.session_id, *wanted)
        core.out.append(
            LoadSession(session=session.uid, tenant=tenant, session_id=placed.session_id, generation=placed.generation)
        )
    return session
