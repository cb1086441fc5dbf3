"""Errors in the words of the Responses API: fields as its clients know them. Pure."""

from __future__ import annotations

from actors.ingress.errors import ApiError
from actors.ingress.responses.body import RENAMED, Asked
from actors.ingress.results import HEADER
from actors.messages import Reason, Stage

NOT_STORED = "it was made with `store: false`"
SESSION_ENDED = "the session that it belongs to is not open"
LEFT_NO_TURN = "it left no turn to go on from"
NEVER_MADE = "it was never made, was deleted, or its time is over"
ITEMS_LOST = "no response was ever made in it, and its items are no longer kept"
WAITING_LOST = "items that waited for its next response are no longer kept; add them again, or change its metadata"


def unknown_response(response_id: str, why: str = "", *, param: str = "response_id") -> ApiError:
    """404. `why`: what is known about it."""
    shown = response_id if len(response_id) <= 100 else response_id[:100] + "…"
    text = f"There is no response {shown!r}" + (f": {why}." if why else ".")
    code = "previous_response_not_found" if param == "previous_response_id" else "response_not_found"
    return ApiError(Reason.SESSION_UNKNOWN, text, param=param, stage=Stage.ROUTING, code=code)


def unknown_conversation(conversation_id: str, param: str = "conversation_id", *, why: str = NEVER_MADE) -> ApiError:
    shown = conversation_id if len(conversation_id) <= 100 else conversation_id[:100] + "…"
    text = f"There is no conversation {shown!r}: {why}."
    return ApiError(Reason.SESSION_UNKNOWN, text, param=param, stage=Stage.ROUTING, code="conversation_not_found")


def key_expired(what: str) -> ApiError:
    text = f"A request of this key was answered; its response {what}. Use another key to ask anew."
    code = "idempotency_key_expired"
    return ApiError(Reason.INVALID, text, param=HEADER, stage=Stage.ROUTING, code=code)


def key_reused() -> ApiError:
    text, code = "This key was used with another body.", "idempotency_key_reused"
    return ApiError(Reason.INVALID, text, param=HEADER, stage=Stage.ROUTING, code=code, status=422)


def explained(error: ApiError, asked: Asked | None, *, places_instructions: bool) -> ApiError:
    """`places_instructions`: the request has instructions that stand in the middle of its context."""
    param = error.param or ""
    if asked is not None and asked.previous is not None and _not_there(error):
        why = SESSION_ENDED if error.reason is Reason.SESSION_UNKNOWN else LEFT_NO_TURN
        return unknown_response(asked.previous, why, param="previous_response_id")
    if asked is not None and asked.conversation is not None and _not_there(error):
        return unknown_conversation(asked.conversation, "conversation")
    if param == "messages" and places_instructions:
        error.param = "instructions"
        error.message += (
            ". Instructions other than those of the responses before stand behind these, as a system message: leave "
            "them out, or repeat the first."
        )
    elif param.startswith("session") or error.reason is Reason.SESSION_BUSY:
        error.param = None if asked is None else "conversation" if asked.conversation else "previous_response_id"
    elif param in RENAMED:
        error.param = RENAMED[param]
    return error


def _not_there(error: ApiError) -> bool:
    own = error.code in ("previous_response_not_found", "conversation_not_found")
    return error.reason in (Reason.SESSION_UNKNOWN, Reason.PARENT_UNKNOWN) and not own
