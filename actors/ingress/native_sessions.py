"""SGLang's own session routes, over the sessions of /v1/sessions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from actors.ingress.auth import caller_of
from actors.ingress.core import Ingress
from actors.ingress.errors import Invalid
from actors.ingress.generation import read_capacity, read_timeout
from actors.ingress.plain_routes import JsonAnswer, body_fields
from actors.ingress.routing import SessionUse
from actors.ingress.sessions_api import close_named, new_id, open_named
from actors.messages import SessionMode

MAX_CHARACTERS = 2**53


async def open_session(ingress: Ingress, request: Request) -> Response:
    """POST /open_session {"session_id"?, "streaming"?, "timeout"?, "capacity_tokens"?} → the id, as a JSON string.

    `capacity_of_str_len` is checked and, as with SGLang, limits nothing."""
    fields = await body_fields(ingress, request, optional=True)
    fields.integer("capacity_of_str_len", least=0, most=MAX_CHARACTERS)
    use = SessionUse(
        session_id=fields.identifier("session_id") or new_id(),
        mode=SessionMode.STREAMING if fields.flag("streaming") else SessionMode.TREE,
        idle_timeout_s=read_timeout(fields, "timeout", ingress.config.sessions.max_idle_timeout_s),
        capacity_tokens=read_capacity(fields),
    )
    await open_named(ingress, caller_of(request.scope).tenant, use)
    return JsonAnswer(use.session_id)


async def close_session(ingress: Ingress, request: Request) -> Response:
    """POST /close_session {"session_id"}: answered when the memory is free, with what was freed. What runs ends by
    itself first (rule S9)."""
    session_id = (await body_fields(ingress, request)).identifier("session_id")
    if session_id is None:
        raise Invalid("session_id", "`session_id` is missing.", code="missing_required_parameter")
    tenant = caller_of(request.scope).tenant
    return JsonAnswer(await close_named(ingress, tenant, session_id, abort_running=False))
