"""One error body everywhere (rule E4), and the map from reasons to HTTP (rule E3)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from actors.messages import Finished, Outcome, Reason, Stage
from actors.ports import WeightsGone

log = logging.getLogger(__name__)

GENERIC_INTERNAL = "The server had an error while processing the request. It is safe to try again."


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a reason looks over HTTP.

    `status` 200 means that the ending is an ordinary answer with finish_reason "abort". `retry_after_s` 0: no
    Retry-After header. `code` and `type` are the OpenAI API's where it has one.
    """

    status: int
    type: str
    code: str
    retryable: bool = False
    retry_after_s: int = 0


_REQUEST = "invalid_request_error"
_SERVER = "server_error"
_BUSY = "service_unavailable"

VERDICTS: dict[Reason, Verdict] = {
    Reason.CLIENT_ABORT: Verdict(200, _REQUEST, "client_abort"),
    Reason.SUPERSEDED: Verdict(200, _REQUEST, "superseded"),
    Reason.SESSION_CLOSED: Verdict(200, _REQUEST, "session_closed"),
    # Heard by a client only when a worker took this ingress for dead: the client did nothing wrong.
    Reason.CLIENT_DISCONNECT: Verdict(503, _BUSY, "client_disconnect", retryable=True, retry_after_s=1),
    Reason.SESSION_BUSY: Verdict(409, _REQUEST, "session_busy", retryable=True),
    Reason.SESSION_CLOSING: Verdict(409, _REQUEST, "session_closing"),
    Reason.SESSION_EXISTS: Verdict(409, _REQUEST, "session_exists"),
    Reason.SESSION_UNKNOWN: Verdict(404, _REQUEST, "session_unknown"),
    Reason.PARENT_UNKNOWN: Verdict(404, _REQUEST, "parent_unknown"),
    Reason.PARENT_UNFINISHED: Verdict(400, _REQUEST, "parent_unfinished"),
    Reason.INVALID: Verdict(400, _REQUEST, "invalid_value"),
    Reason.TOO_LARGE: Verdict(400, _REQUEST, "context_length_exceeded"),
    Reason.SESSION_CAPACITY: Verdict(400, _REQUEST, "session_capacity"),
    Reason.GRAMMAR_INVALID: Verdict(400, _REQUEST, "grammar_invalid"),
    Reason.QUEUE_FULL: Verdict(429, "rate_limit_error", "rate_limit_exceeded", retryable=True, retry_after_s=1),
    Reason.WAITING_TIMEOUT: Verdict(503, _BUSY, "waiting_timeout", retryable=True, retry_after_s=1),
    Reason.WORKER_DRAINING: Verdict(503, _BUSY, "worker_draining", retryable=True, retry_after_s=1),
    Reason.WORKER_LOST: Verdict(503, _BUSY, "worker_lost", retryable=True, retry_after_s=1),
    Reason.SHUTDOWN: Verdict(503, _BUSY, "shutdown", retryable=True, retry_after_s=5),
    Reason.GRAMMAR_TIMEOUT: Verdict(503, _BUSY, "grammar_timeout", retryable=True, retry_after_s=1),
    Reason.RUNNING_TIMEOUT: Verdict(503, _BUSY, "running_timeout"),
    Reason.DEADLINE: Verdict(503, _BUSY, "deadline"),
    Reason.INTERNAL: Verdict(500, _SERVER, "internal_error", retryable=True),
}

_DEFAULT_MESSAGES: dict[Reason, str] = {
    Reason.WORKER_LOST: "The worker that ran this request was lost. Please send it again.",
    Reason.SHUTDOWN: "The server is shutting down.",
    Reason.WAITING_TIMEOUT: "The request waited too long to be started.",
    Reason.RUNNING_TIMEOUT: "The request ran longer than its running timeout.",
    Reason.DEADLINE: "The request did not end before its deadline.",
    Reason.QUEUE_FULL: "Too many requests are waiting. Please try again later.",
    Reason.CLIENT_DISCONNECT: "The request was ended because its connection was taken for dead. Please send it again.",
}


class ApiError(Exception):
    """An answer that is an error. Raised anywhere in the ingress, turned into HTTP or an SSE event in one place."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        param: str | None = None,
        stage: Stage = Stage.INGRESS,
        code: str | None = None,
        status: int | None = None,
        partial: dict[str, object] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        verdict = VERDICTS[reason]
        self.reason = reason
        self.message = message
        self.param = param
        self.stage = stage
        self.verdict = verdict
        self.status = status or verdict.status
        self.code = code or verdict.code
        self.partial = partial
        self.extra_headers = headers or {}
        self.prompt = 0
        """Number of the prompt whose reply it is about, where a request has several."""

    def body(self, request_id: str) -> dict[str, object]:
        error: dict[str, object] = {
            "message": self.message,
            "type": self.verdict.type,
            "code": self.code,
            "param": self.param,
            "reason": self.reason.value,
            "stage": self.stage.value,
            "retryable": self.verdict.retryable,
            "request_id": request_id,
        }
        if self.partial is not None:
            error["partial"] = self.partial
        return {"error": error}

    def headers(self) -> dict[str, str]:
        """Headers of a real HTTP error: what the OpenAI clients look at when they decide about a retry."""
        headers = {"x-should-retry": "true" if self.verdict.retryable else "false", **self.extra_headers}
        if self.verdict.retry_after_s:
            headers.setdefault("retry-after", str(self.verdict.retry_after_s))
        return headers


class Invalid(ApiError):
    """A wrong value in a request. `param` names the field as the client wrote it, e.g. `messages[1].role`."""

    def __init__(self, param: str | None, message: str, *, code: str = "invalid_value", status: int = 400) -> None:
        super().__init__(Reason.INVALID, message, param=param, code=code, status=status)


def model_not_found(name: str, served: str) -> ApiError:
    shown = name if len(name) <= 100 else name[:100] + "…"
    message = f"The model `{shown}` does not exist here. Served: `{served}`."
    return Invalid("model", message, code="model_not_found", status=404)


def weights_gone(gone: WeightsGone) -> ApiError:
    """A session is never gone on with by other weights than it is pinned to, and not in silence (rule T6)."""
    message = (
        f"This session is pinned to the model's weights {gone}, which are not served any more. "
        "It can be read and closed; a conversation with the present weights needs a new session."
    )
    code = "weights_gone"
    return ApiError(Reason.INVALID, message, param="session.id", stage=Stage.ROUTING, code=code, status=409)


def is_answer(finished: Finished) -> bool:
    """Whether an ending is told as an ordinary answer (status 200), not as an error."""
    return finished.outcome is not Outcome.ABORT or VERDICTS[_reason(finished)].status == 200


def from_finished(finished: Finished, partial_text: str, completion_tokens: int) -> ApiError:
    """The error that an aborted request's end amounts to. `partial_text` is what was made before, if anything was."""
    reason = _reason(finished)
    if reason is Reason.INTERNAL:
        log.error("a request ended with an internal error: %s", finished.message)  # The client is not told.
        message = GENERIC_INTERNAL
    else:
        message = finished.message or _DEFAULT_MESSAGES.get(reason, reason.value.replace("_", " "))
    partial: dict[str, object] | None = None
    if completion_tokens:
        partial = {"text": partial_text, "completion_tokens": completion_tokens}
    stage = finished.stage or Stage.INGRESS
    if reason is Reason.INVALID and finished.param == "idempotency_key":
        code = "idempotency_key_reused"
        return ApiError(reason, message, param="Idempotency-Key", stage=stage, code=code, status=422)
    return ApiError(reason, message, param=finished.param, stage=stage, partial=partial)


def _reason(finished: Finished) -> Reason:
    return finished.reason or Reason.INTERNAL
