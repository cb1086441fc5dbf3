"""Where a response goes on: its name, its session, and what stands before it."""

from __future__ import annotations

import logging

from actors.ingress.core import Ingress
from actors.ingress.errors import ApiError
from actors.ingress.responses.body import Asked
from actors.ingress.responses.conversations import Goes
from actors.ingress.responses.ids import Kind, ResponseId, token_of_conversation
from actors.ingress.responses.shelf import Deleted, NotKept, Shelf
from actors.ingress.responses.wording import LEFT_NO_TURN, SESSION_ENDED, unknown_response
from actors.ingress.routing import SessionUse
from actors.ingress.storing import in_time
from actors.messages import OnBusy, Reason, SessionMode, Stage
from actors.ports import NoWorker, SessionLimit
from actors.records import SessionExists, SessionUnknown, StoreError, TurnUnknown

log = logging.getLogger(__name__)

_FIELD = "previous_response_id"


def place(asked: Asked, own: str) -> tuple[ResponseId, SessionUse | None]:
    """The name of a response, and the session that it is a turn of. Pure.

    Several that go on from one wait for each other; in a conversation the second is refused."""
    if not asked.store:
        return ResponseId(Kind.STATELESS, own, own), None
    if asked.conversation is not None:
        named = ResponseId(Kind.CONVERSATION, token_of_conversation(asked.conversation), own)
        return named, SessionUse(session_id=asked.conversation, mode=SessionMode.TREE)
    if asked.previous is None:
        named = ResponseId(Kind.CHAIN, own, own)
        return named, SessionUse(session_id=named.session_id, mode=SessionMode.TREE, from_head=False, create=True)
    previous = ResponseId.parse(asked.previous)
    chain = previous.chain if previous is not None and previous.kind is Kind.CHAIN else own
    named = ResponseId(Kind.CHAIN, chain, own)
    use = SessionUse(
        session_id=named.session_id,
        mode=SessionMode.TREE,
        from_head=False,
        parent=asked.previous,
        on_busy=OnBusy.QUEUE,
    )
    return named, use


async def goes_after(ingress: Ingress, shelf: Shelf, tenant: str, previous: ResponseId, *, surely: bool) -> Goes:
    """What is known of a predecessor; its turn may be there when its record is not. `surely`: only if its session is
    open, which its worker would find out later. Raises ApiError, StoreError."""
    try:
        before = (await shelf.find(tenant, str(previous))).told
    except Deleted as why:
        raise unknown_response(str(previous), str(why), param=_FIELD) from None
    except NotKept:
        before = None
    if before is not None and before.status in ("failed", "cancelled"):
        raise unknown_response(str(previous), LEFT_NO_TURN, param=_FIELD)
    if before is None or surely:
        try:
            await in_time(ingress.pool.get_session(tenant, previous.session_id))
        except SessionUnknown:
            raise unknown_response(str(previous), SESSION_ENDED, param=_FIELD) from None
    return Goes(goes_on=True) if before is None else Goes(before.in_force, before.tools, goes_on=True)


async def fork(ingress: Ingress, tenant: str, previous: ResponseId, session_id: str) -> None:
    """Go on from a turn of a conversation without touching that: in a session of its own (rule S12). Raises ApiError,
    StoreError."""
    try:
        placement = await ingress.pool.fork_session(
            tenant,
            session_id,
            source_id=previous.session_id,
            turn=str(previous),
            max_sessions=ingress.max_sessions(tenant),
        )
    except SessionExists:
        return  # This request was sent before.
    except (SessionUnknown, TurnUnknown):
        raise unknown_response(str(previous), param=_FIELD) from None
    except SessionLimit as error:
        raise ApiError(Reason.SESSION_CAPACITY, str(error), stage=Stage.ROUTING) from None
    except NoWorker:
        text = "No worker is ready. Please try again."
        raise ApiError(Reason.WORKER_LOST, text, stage=Stage.ROUTING) from None
    ingress.router.remember(placement)


async def close_unused(ingress: Ingress, tenant: str, session_id: str) -> None:
    """The session of a response that left no turn: nobody can go on in it, and it counts (rule S10)."""
    try:
        if (await in_time(ingress.pool.get_session(tenant, session_id))).turns == 0:
            ingress.router.forget(tenant, session_id)
            await ingress.pool.close_session(tenant, session_id, abort_running=True)
    except SessionUnknown:
        log.debug("session %a was gone before", session_id)
    except (StoreError, NoWorker) as error:
        log.warning("an unused session stays open until its time is over: %s", error)
