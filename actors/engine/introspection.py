"""What introspection tells of a session (rule S11)."""

from __future__ import annotations

from actors.engine.core import Core
from actors.engine.sessions import Session
from actors.messages import SessionInfo


def describe(core: Core, session: Session, now: float) -> SessionInfo:
    running = core.requests.by_uid(session.lease.uid) if session.lease else None
    image = core.images.get(session.uid)
    return SessionInfo(
        tenant=session.tenant,
        session_id=session.session_id,
        generation=session.generation,
        epoch=session.epoch,
        mode=session.mode,
        state=session.state.value,
        turns=len(session.history),
        tokens=session.history.num_tokens,
        resident_tokens=core.kv.slot_length(session.uid),
        hibernated_tokens=len(image.keys) * core.kv.page_size if image else 0,
        idle_s=0.0 if session.lease else max(0.0, now - session.idle_since),
        running_rid=running.submit.rid if running else None,
        queued=len(session.queue),
        head=session.history.head,
    )
