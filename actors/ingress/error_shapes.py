"""The one error body (rule E4) as the clients of a route expect it. Pure."""

from __future__ import annotations

from typing import Any

from actors.ingress.errors import ApiError
from actors.messages import Reason

ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
_TIMEOUTS = frozenset({Reason.RUNNING_TIMEOUT, Reason.DEADLINE})


def error_body(error: ApiError, request_id: str, path: str) -> dict[str, Any]:
    """For an error that is told outside of any API's own code: by the gate, by limits, for unknown routes."""
    return anthropic_error(error, request_id) if is_anthropic(path) else error.body(request_id)


def is_anthropic(path: str) -> bool:
    """Whether Anthropic's clients ask there."""
    return path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/")


def anthropic_error(error: ApiError, request_id: str) -> dict[str, Any]:
    """Every field of the one error body, and around it what Anthropic's clients look for."""
    told = dict(error.body(request_id)["error"])  # type: ignore[call-overload]
    told["type"] = _anthropic_type(error)
    return {"type": "error", "error": told, "request_id": request_id}


def _anthropic_type(error: ApiError) -> str:
    if error.reason in _TIMEOUTS:
        return "timeout_error"
    return _ANTHROPIC_TYPES.get(error.status, "invalid_request_error")
