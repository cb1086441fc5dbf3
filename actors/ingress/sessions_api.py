"""/v1/sessions: open, list, get, fork, roll back, close (rules S9, S11–S14)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from actors.ingress.auth import caller_of
from actors.ingress.core import Ingress
from actors.ingress.errors import GENERIC_INTERNAL, ApiError, Invalid
from actors.ingress.generation import read_capacity, read_idle_timeout
from actors.ingress.plain_routes import JsonAnswer, body_fields
from actors.ingress.responses.ids import check_own_session
from actors.ingress.routing import SessionUse
from actors.ingress.validate import check_identifier
from actors.messages import (
    ForkSession,
    GetSession,
    OpenSession,
    Reason,
    SessionClosed,
    SessionInfo,
    SessionMode,
    SessionRolledBack,
    Stage,
)
from actors.ports import Placement, SessionLimit, WorkerGone
from actors.records import SessionExists, SessionRecord, SessionUnknown, TurnUnknown

log = logging.getLogger(__name__)

MAX_LISTED = 1000
OWNER_ANSWER_S = 2.0


async def open_session(ingress: Ingress, request: Request) -> Response:
    """POST /v1/sessions {"id"?, "mode"?, "idle_timeout_s"?, "capacity_tokens"?}."""
    fields = await body_fields(ingress, request, optional=True)
    use = SessionUse(
        session_id=fields.identifier("id") or new_id(),
        mode=fields.choice("mode", SessionMode, SessionMode.TREE),
        idle_timeout_s=read_idle_timeout(fields, ingress.config),
        capacity_tokens=read_capacity(fields),
    )
    return JsonAnswer(await open_named(ingress, _tenant(request), use))


async def open_named(ingress: Ingress, tenant: str, use: SessionUse) -> dict[str, Any]:
    """Open a session, and describe it. Raises ApiError."""
    session_id = use.session_id
    check_own_session(session_id, "id")
    try:
        placement = await ingress.router.patiently(lambda: ingress.router.open_session(tenant, session_id, use))
    except SessionExists:
        raise _exists() from None
    log.info("session %a opened on %s", session_id, placement.worker_id)
    info = await _tell_owner(ingress, placement)
    return _described(placement.session, info)


async def list_sessions(ingress: Ingress, request: Request) -> Response:
    """GET /v1/sessions?after=&limit=: in order of id, as the store knows them."""
    limit = _limit(request.query_params.get("limit"))
    after = request.query_params.get("after", "")
    rows = await ingress.pool.list_sessions(_tenant(request), after=after, limit=limit + 1)
    data = [_listed(row) for row in rows[:limit]]
    answer = {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(rows) > limit,
    }
    return JsonAnswer(answer)


async def get_session(ingress: Ingress, request: Request) -> Response:
    """GET /v1/sessions/{id}: the store's record, and what its owner says of it now."""
    session_id = _path_id(request)
    try:
        record = await ingress.pool.get_session(_tenant(request), session_id)
    except SessionUnknown:
        raise _unknown() from None
    info = await _ask_owner(ingress, record, GetSession(tenant=record.tenant, session_id=session_id))
    return JsonAnswer(_described(record, info))


async def fork_session(ingress: Ingress, request: Request) -> Response:
    """POST /v1/sessions/{id}/fork {"id"?, "turn"?}: a new session that begins with what this one had committed up to
    `turn`, by default its head (rule S12)."""
    source_id = _path_id(request)
    fields = await body_fields(ingress, request, optional=True)
    session_id = fields.identifier("id") or new_id()
    check_own_session(session_id, "id")
    turn = fields.identifier("turn")
    tenant = _tenant(request)
    try:
        placement = await ingress.router.patiently(
            lambda: ingress.pool.fork_session(
                tenant, session_id, source_id=source_id, turn=turn, max_sessions=ingress.max_sessions(tenant)
            )
        )
    except SessionExists:
        raise _exists() from None
    except SessionUnknown:
        raise _unknown() from None
    except TurnUnknown:
        text = "The session has no committed turn." if turn is None else f"The session has no turn {turn!r}."
        raise ApiError(Reason.PARENT_UNKNOWN, text, param="turn", stage=Stage.ROUTING) from None
    except SessionLimit as error:
        raise ApiError(Reason.SESSION_CAPACITY, str(error), param="session", stage=Stage.ROUTING) from None
    ingress.router.remember(placement)
    log.info("session %a forked from %a on %s", session_id, source_id, placement.worker_id)
    record = placement.session
    message = ForkSession(
        tenant=record.tenant,
        session_id=record.session_id,
        generation=record.generation,
        epoch=record.epoch,
        source_id=source_id,
    )
    return JsonAnswer(_described(record, await _ask_owner(ingress, record, message)))


async def rollback_session(ingress: Ingress, request: Request) -> Response:
    """POST /v1/sessions/{id}/rollback {"turn"}: that turn becomes the head; turns that continue from it are dropped
    (rule S12)."""
    session_id = _path_id(request)
    check_own_session(session_id, "session_id")
    turn = (await body_fields(ingress, request)).identifier("turn")
    if turn is None:
        raise Invalid("turn", "`turn` must name the turn to go back to.")
    try:
        done = await ingress.pool.rollback_session(_tenant(request), session_id, turn=turn)
        if done.reason is not None:
            param = "turn" if done.reason is Reason.PARENT_UNKNOWN else None
            raise ApiError(done.reason, _why(done), param=param, stage=Stage.ROUTING)
        record = await ingress.pool.get_session(_tenant(request), session_id)
    except SessionUnknown:
        raise _unknown() from None
    log.info("session %a rolled back to %a", session_id, turn)
    return JsonAnswer({**_described(record, done.info), "dropped_turns": done.dropped})


async def close_session(ingress: Ingress, request: Request) -> Response:
    """DELETE /v1/sessions/{id}?mode=graceful|abort. Answered when the memory is free."""
    session_id = _path_id(request)
    mode = request.query_params.get("mode")
    if mode is None:
        mode = (await body_fields(ingress, request, optional=True)).text("mode", max_bytes=64)
    if mode not in (None, "graceful", "abort"):
        raise Invalid("mode", "`mode` must be 'graceful' or 'abort'.")
    return JsonAnswer(await close_named(ingress, _tenant(request), session_id, abort_running=mode == "abort"))


async def close_named(ingress: Ingress, tenant: str, session_id: str, *, abort_running: bool) -> dict[str, Any]:
    """Close a session, and say what was freed. Raises ApiError."""
    ingress.router.forget(tenant, session_id)
    try:
        closed = await ingress.pool.close_session(tenant, session_id, abort_running=abort_running)
    except SessionUnknown:
        raise _unknown() from None
    if isinstance(closed, SessionClosed) and not closed.known:
        raise _unknown()
    log.info("session %a closed", session_id)
    return {"id": session_id, "object": "session.closed", "closed": True, **_freed(closed)}


async def _tell_owner(ingress: Ingress, placement: Placement) -> SessionInfo | None:
    """Have the owner take the session in. Without an answer it is open all the same: its first turn loads it."""
    record = placement.session
    message = OpenSession(
        tenant=record.tenant,
        session_id=record.session_id,
        generation=record.generation,
        epoch=record.epoch,
        mode=record.mode,
        idle_timeout_s=record.idle_timeout_s,
        capacity_tokens=record.capacity_tokens,
    )
    return await _ask_owner(ingress, record, message)


async def _ask_owner(
    ingress: Ingress, record: SessionRecord, message: GetSession | OpenSession | ForkSession
) -> SessionInfo | None:
    try:
        answer = await asyncio.wait_for(ingress.pool.worker(record.owner).ask(message), OWNER_ANSWER_S)
    except (WorkerGone, asyncio.TimeoutError):
        return None
    if not isinstance(answer, SessionInfo) or answer.generation != record.generation:
        return None
    return answer


def _described(record: SessionRecord, info: SessionInfo | None) -> dict[str, Any]:
    """One session. What only its owner knows is null when the owner did not say; while the owner is still reading the
    history, the store knows better."""
    known = None if info is None or info.state == "loading" else info
    return {
        "id": record.session_id,
        "object": "session",
        "mode": record.mode.value,
        "state": info.state if info else None,
        "turns": known.turns if known else record.turns,
        "tokens": known.tokens if known else record.tokens,
        "resident_tokens": info.resident_tokens if info else None,
        "worker": record.owner,
        "epoch": record.epoch,
        "generation": record.generation,
        "head": known.head if known else record.head,
        "weights": record.weights or None,
        "running_rid": info.running_rid if info else None,
        "queued": info.queued if info else None,
        "idle_s": info.idle_s if info else None,
        "last_active_at": record.last_active_at,
        "idle_timeout_s": record.idle_timeout_s,
        "capacity_tokens": record.capacity_tokens,
    }


def _listed(record: SessionRecord) -> dict[str, Any]:
    """A row of the list: what the store knows. What only the owner knows takes a GET of the session."""
    row = _described(record, None)
    for name in ("state", "resident_tokens", "running_rid", "queued", "idle_s"):
        del row[name]
    return row


def _freed(closed: object) -> dict[str, int]:
    if not isinstance(closed, SessionClosed):
        return {}
    return {"turns": closed.turns, "freed_pages": closed.freed_pages, "freed_tokens": closed.freed_tokens}


def _why(refused: SessionRolledBack) -> str:
    return GENERIC_INTERNAL if refused.reason is Reason.INTERNAL else refused.message


def new_id() -> str:
    """Of a session that its caller has no name for."""
    return f"sess-{secrets.token_hex(12)}"


def _tenant(request: Request) -> str:
    """Whose sessions there are, for this caller."""
    return caller_of(request.scope).tenant


def _path_id(request: Request) -> str:
    return check_identifier(request.path_params["session_id"], "session_id")


def _limit(text: str | None) -> int:
    if text is None:
        return 100
    if not (text.isascii() and text.isdigit() and len(text) < 8 and 1 <= int(text) <= MAX_LISTED):
        raise Invalid("limit", f"`limit` must be an integer from 1 to {MAX_LISTED}.")
    return int(text)


def _exists() -> ApiError:
    message = "A session of this id is open already."
    return ApiError(Reason.SESSION_EXISTS, message, param="id", stage=Stage.ROUTING)


def _unknown() -> ApiError:
    return ApiError(Reason.SESSION_UNKNOWN, "No session of this id is open.", param="session_id", stage=Stage.ROUTING)
