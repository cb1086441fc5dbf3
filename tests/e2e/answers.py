"""Reading answers of /v1/chat/completions as a suspicious client does."""

from __future__ import annotations

from typing import Any

from actors.messages import Reason, Stage
from tests.e2e.raw_http import Answer

REASONS = frozenset(reason.value for reason in Reason)
STAGES = frozenset(stage.value for stage in Stage)
ERROR_FIELDS = {"message", "type", "code", "param", "reason", "stage", "retryable", "request_id"}
STRANGE = "lost by the proxy"


def streamed(answer: Answer) -> bool:
    return "text/event-stream" in answer.headers.get("content-type", "")


def error_of(answer: Answer) -> dict[str, Any] | None:
    """The error it amounts to, as a status or as an event."""
    if answer.status == 0 or not _ours(answer):
        return None
    trees = answer.events if streamed(answer) else [answer.tree]
    return next((dict(tree["error"]) for tree in trees if "error" in tree), None)


def outcome_of(answer: Answer) -> str:
    """`left`, a finish_reason, an error's reason, or what became of an answer that is none of ours."""
    if answer.status == 0:
        return "left"
    if not _ours(answer):
        return STRANGE
    error = error_of(answer)
    if error is not None:
        return str(error["reason"])
    if not streamed(answer):
        return str(answer.tree["choices"][0]["finish_reason"])
    for event in answer.events:
        if event["choices"] and event["choices"][0]["finish_reason"]:
            return str(event["choices"][0]["finish_reason"])
    return "cut"


def text_of(answer: Answer) -> str:
    if not streamed(answer):
        return str(answer.tree["choices"][0]["message"]["content"])
    pieces = [event["choices"][0]["delta"].get("content", "") for event in answer.events if event.get("choices")]
    return "".join(pieces)


def usage_of(answer: Answer) -> dict[str, Any]:
    if not streamed(answer):
        return dict(answer.tree["usage"])
    return next(dict(event["usage"]) for event in answer.events if event.get("usage"))


def flaws_of(answer: Answer, max_tokens: int) -> list[str]:
    """What is wrong with an answer whatever was asked (rules E1, E4, E5). `max_tokens`: most that it may have."""
    if answer.status == 0 or not _ours(answer):
        return []
    error = error_of(answer)
    if error is not None:
        return _flaws_of_error(error)
    flaws = [] if answer.status == 200 else [f"status {answer.status} of an answer"]
    usage = usage_of(answer)
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    if usage["total_tokens"] != prompt + completion or not 0 <= cached <= prompt or not 0 <= completion <= max_tokens:
        flaws.append(f"usage {usage} with max_tokens {max_tokens}")
    if streamed(answer):
        ends = [event for event in answer.events if event["choices"] and event["choices"][0]["finish_reason"]]
        if len(ends) != 1 or not answer.body.endswith(b"data: [DONE]\n\n"):
            flaws.append(f"{len(ends)} ends, and then {answer.body[-40:]!r}")
    return flaws


def _flaws_of_error(error: dict[str, Any]) -> list[str]:
    flaws = [] if set(error) - {"partial"} == ERROR_FIELDS else [f"an error of the fields {sorted(error)}"]
    if error.get("reason") not in REASONS or error.get("stage") not in STAGES:
        flaws.append(f"reason {error.get('reason')!r}, stage {error.get('stage')!r}")
    if not isinstance(error.get("retryable"), bool) or not error.get("message"):
        flaws.append(f"an error that says too little: {error}")
    return flaws


def _ours(answer: Answer) -> bool:
    return streamed(answer) or "application/json" in answer.headers.get("content-type", "")
