"""What POST /v1/chat/completions answers: the one object, or the chunks of a stream. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from actors.ingress.errors import ApiError
from actors.messages import Finished, Outcome

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """What never changes over an answer's chunks. `created` is Unix time."""

    rid: str
    created: int
    model: str

    def chunk(self, delta: dict[str, str] | None, finish_reason: str | None = None, **extra: Any) -> bytes:
        """One SSE event. `delta` None: the usage chunk, which has no choices."""
        choices = [] if delta is None else [_choice("delta", delta, finish_reason)]
        return event({**self._fields("chat.completion.chunk"), "choices": choices, **extra})

    def answer(self, text: str, finished: Finished, **extra: Any) -> bytes:
        """The unary answer's body."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choices = [_choice("message", message, finish_reason(finished))]
        fields = self._fields("chat.completion")
        return orjson.dumps({**fields, "choices": choices, "usage": usage(finished), **extra})

    def _fields(self, kind: str) -> dict[str, Any]:
        return {"id": self.rid, "object": kind, "created": self.created, "model": self.model}


def event(tree: dict[str, Any], name: str = "") -> bytes:
    prefix = f"event: {name}\n".encode() if name else b""
    return prefix + b"data: " + orjson.dumps(tree) + b"\n\n"


def error_event(error: ApiError, request_id: str) -> bytes:
    return event(error.body(request_id), "error")


def finish_reason(finished: Finished) -> str:
    return "abort" if finished.outcome is Outcome.ABORT else str(finished.outcome.value)


def usage(finished: Finished) -> dict[str, Any]:
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": finished.cached_tokens},
    }


def _choice(kind: str, content: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": 0, kind: content, "logprobs": None, "finish_reason": finish}
