"""Sessions that move to another worker, with their KV where that is cheap (rules P3, T5).

    pool     LeaveSession ──▶ owner: copy what has no copy ── PackKV ──▶ SessionLeft (keys of the parcel's pages)
             acquire under a higher epoch; fetch the parcel and bring it
             ReceiveSession ──▶ new owner: read the history ── UnpackKV ──▶ an image like any that hibernates here

The store and its epochs decide who owns a session; the parcel is a cache, and whatever becomes of it costs a prefill.
"""

from __future__ import annotations

from actors.engine.core import Core
from actors.engine.effects import PackKV, UnpackKV
from actors.engine.endings import Endings
from actors.engine.hibernation import Hibernation
from actors.engine.ownership import session_of
from actors.engine.request import Verdict
from actors.engine.sessions import Session, SessionState
from actors.messages import LeaveSession, ReceiveSession, Reply, SessionLeft

KEY_BYTES = 16


class Moving:
    def __init__(self, core: Core, endings: Endings, hibernation: Hibernation) -> None:
        self._core = core
        self._endings = endings
        self._hibernation = hibernation
        self._leaving: dict[int, LeaveSession] = {}
        """By uid of the session: its KV is being copied, and it leaves then, if it is still idle."""

    def leave(self, message: LeaveSession, now: float) -> None:
        """Give a session up; not while a turn of it runs or waits."""
        session = self._core.sessions.find(message.tenant, message.session_id)
        numbers = (message.generation, message.epoch)
        if session is None or (session.generation, session.epoch) != numbers or not _idle(session):
            self._answer(message, left=False)
        elif session.uid in self._leaving:
            self._answer(message, left=False)  # It is asked twice; the first question stands.
        elif self._comes_along(session, message) and self._hibernation.save(session.uid):
            self._leaving[session.uid] = message
        else:
            self._go(session, message, now)

    def saved(self, session_uid: int, now: float) -> None:
        """A copy was made. If it was for a session that is to leave, it does, unless a turn has come meanwhile."""
        message = self._leaving.pop(session_uid, None)
        if message is None:
            return
        session = self._core.sessions.by_uid(session_uid)
        if session is None or not _idle(session):
            self._answer(message, left=False)
        else:
            self._go(session, message, now)

    def receive(self, message: ReceiveSession, now: float) -> None:
        """KV of a session that this worker owns now. Of no use if the session has changed hands again, or has KV here
        already."""
        session = session_of(self._core, self._endings, message.tenant, message, now)
        if isinstance(session, Verdict) or not self._lacks_kv(session):
            self._core.out.append(UnpackKV(session=0, parcel=message.parcel))
            self._core.out.append(Reply(ask=message.ask, value=False))
            return
        packed = message.keys
        keys = [packed[start : start + KEY_BYTES] for start in range(0, len(packed), KEY_BYTES)]
        self._hibernation.arrives(session.uid, keys, message.parcel)
        self._core.out.append(Reply(ask=message.ask, value=True))

    def _comes_along(self, session: Session, message: LeaveSession) -> bool:
        """Whether its KV is wanted and not too large, and nothing else is being copied of it."""
        pages = len(self._core.kv.slot_keys(session.uid))
        size = pages * self._core.settings.page_bytes
        return bool(message.parcel) and 0 < size <= message.max_kv_bytes and session.uid not in self._core.kv.transfers

    def _lacks_kv(self, session: Session) -> bool:
        kv, uid = self._core.kv, session.uid
        state = session.state in (SessionState.LOADING, SessionState.IDLE, SessionState.BUSY)
        return state and not kv.slot_length(uid) and uid not in self._core.images and uid not in kv.transfers

    def _go(self, session: Session, message: LeaveSession, now: float) -> None:
        image = self._core.images.get(session.uid)
        keys: list[bytes] = []
        size = len(image.keys) * self._core.settings.page_bytes if image else 0
        if image is not None and message.parcel and 0 < size <= message.max_kv_bytes:
            keys = image.keys
            del self._core.images[session.uid]
            self._core.out.append(PackKV(session=session.uid, parcel=message.parcel))
        self._core.left.add((*session.key, session.generation, session.epoch), now)
        self._endings.disown(session, now)
        self._answer(message, left=True, keys=b"".join(keys))

    def _answer(self, message: LeaveSession, *, left: bool, keys: bytes = b"") -> None:
        self._core.out.append(Reply(ask=message.ask, value=SessionLeft(left=left, keys=keys)))


def _idle(session: Session) -> bool:
    return session.state is SessionState.IDLE and not session.queue
