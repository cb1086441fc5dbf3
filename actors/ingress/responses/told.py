"""A response as far as it has come: what its object, its stream and its record are made of. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from actors.ingress.errors import ApiError
from actors.ingress.responses.items import Item
from actors.ingress.responses.output import output_of
from actors.messages import Finished, Outcome
from actors.replies.parts import CallArguments, CallBegins, Part, ReasoningPart, TextPart

VERSION = 1


@dataclass(slots=True, kw_only=True)
class Told:
    """`parts` are kept as they were cut when they came: a stream told again is the same, event by event.

    `error`: of one that failed: the error body of all routes, and its status in `error_status`. Times are Unix times,
    in seconds. `input_kept`: whether there was room for its input items in the store.
    """

    id: str
    own: str
    model: str
    created_at: int
    echo: dict[str, Any]
    items: list[Item]
    parts: list[Part] = field(default_factory=list)
    begun: bool = False
    end: Finished | None = None
    error: dict[str, Any] | None = None
    completed_at: int | None = None
    input_kept: bool = True
    in_force: str | None = None
    """The instructions that stand in its context: its own, or those of a response before it."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """The same of tools, as templates take them."""
    reasoning_tokens: int = 0

    @property
    def over(self) -> bool:
        return self.end is not None or self.error is not None

    @property
    def background(self) -> bool:
        return bool(self.echo["background"])

    @property
    def status(self) -> str:
        if self.error is not None:
            return "failed"
        if self.end is None:
            return "in_progress" if self.begun or not self.background else "queued"
        return {Outcome.STOP: "completed", Outcome.LENGTH: "incomplete", Outcome.ABORT: "cancelled"}[self.end.outcome]

    def output(self) -> list[dict[str, Any]]:
        output = output_of(self.own, self.parts)
        if self.end is None:
            return output.items("incomplete" if self.error is not None else "in_progress")
        output.finish(whole=self.end.outcome is Outcome.STOP)
        return output.items()

    def object(self, status: str | None = None, output: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """The response. `status` and `output`: at an earlier moment of it."""
        status = status or self.status
        over = status not in ("queued", "in_progress")
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        error = {"code": self.error["code"], "message": self.error["message"]} if over and self.error else None
        told = {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "completed_at": self.completed_at if status == "completed" else None,
            "error": error,
            "incomplete_details": cut,
            "model": self.model,
            "output": self.output() if output is None else output,
            **self.echo,
            "usage": _usage(self.end, self.reasoning_tokens) if over and self.end is not None else None,
        }
        return {**told, "replayed": True} if over and self.end is not None and self.end.replayed else told

    def fail(self, error: ApiError, request_id: str) -> None:
        told = error.body(request_id)["error"]
        assert isinstance(told, dict)
        self.error = told

    def smaller(self) -> list[Told]:
        """Ever less of it, for where there is little room: without its input; and without how its output was cut, so
        that a stream of it has other events than the first, and without its log probabilities."""
        without_input = replace(self, input_kept=False)
        return [without_input, replace(without_input, parts=_joined(self.parts))]

    def packed(self) -> bytes:
        """What is stored."""
        return orjson.dumps(
            {
                "v": VERSION,
                "id": self.id,
                "own": self.own,
                "model": self.model,
                "created_at": self.created_at,
                "completed_at": self.completed_at,
                "echo": self.echo,
                "items": self.items if self.input_kept else None,
                "in_force": self.in_force,
                "tools": self.tools,
                "begun": self.begun,
                "parts": [_packed_part(part) for part in self.parts],
                "end": None if self.end is None else _packed_end(self.end),
                "error": self.error,
                "reasoning_tokens": self.reasoning_tokens,
            }
        )

    @staticmethod
    def unpacked(body: bytes) -> Told:
        kept = orjson.loads(body)
        return Told(
            id=kept["id"],
            own=kept["own"],
            model=kept["model"],
            created_at=kept["created_at"],
            completed_at=kept["completed_at"],
            echo=kept["echo"],
            items=kept["items"] or [],
            input_kept=kept["items"] is not None,
            in_force=kept["in_force"],
            tools=kept["tools"],
            begun=kept["begun"],
            parts=[_unpacked_part(part) for part in kept["parts"]],
            end=None if kept["end"] is None else _unpacked_end(kept["end"]),
            error=kept["error"],
            reasoning_tokens=kept.get("reasoning_tokens", 0),
        )


def _usage(end: Finished, reasoning_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": end.prompt_tokens,
        "input_tokens_details": {"cached_tokens": end.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": end.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": end.prompt_tokens + end.completion_tokens,
    }


def _joined(parts: list[Part]) -> list[Part]:
    """Neighbours of one kind as one."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, TextPart):
            part = TextPart(part.text)
        match last, part:
            case TextPart(before), TextPart(text):
                joined[-1] = TextPart(before + text)
            case ReasoningPart(before), ReasoningPart(text):
                joined[-1] = ReasoningPart(before + text)
            case CallArguments(number, before), CallArguments(_, text):
                joined[-1] = CallArguments(number, before + text)
            case _:
                joined.append(part)
    return joined


def _packed_part(part: Part) -> list[Any]:
    match part:
        case TextPart(text, logprobs):
            return ["t", text, logprobs] if logprobs else ["t", text]
        case ReasoningPart(text):
            return ["r", text]
        case CallBegins(number, call_id, name):
            return ["c", number, call_id, name]
        case CallArguments(number, text):
            return ["a", number, text]


def _unpacked_part(kept: list[Any]) -> Part:
    kind, *rest = kept
    if kind == "t":
        return TextPart(rest[0], tuple(rest[1]) if len(rest) > 1 else ())
    makers: dict[str, type[Part]] = {"r": ReasoningPart, "c": CallBegins, "a": CallArguments}
    return makers[kind](*rest)


def _packed_end(end: Finished) -> dict[str, Any]:
    return {
        "outcome": end.outcome.value,
        "prompt_tokens": end.prompt_tokens,
        "completion_tokens": end.completion_tokens,
        "cached_tokens": end.cached_tokens,
    }


def _unpacked_end(kept: dict[str, Any]) -> Finished:
    return Finished(ingress="", key="", **{**kept, "outcome": Outcome(kept["outcome"])})
