"""What POST /v1/responses answers: the response, or the events of its stream. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from actors.ingress.choices import Choice
from actors.ingress.errors import ApiError
from actors.ingress.openai_answers import KEEP_ALIVE
from actors.ingress.openai_answers import event as sse
from actors.ingress.responses.output import Event, Output
from actors.ingress.responses.told import Told
from actors.messages import Outcome
from actors.replies.parts import Part

_LAST = {"completed": "response.completed", "incomplete": "response.incomplete", "cancelled": "response.incomplete"}
"""The API has no event for what was cancelled: the response in it says so."""


class Teller:
    """Writes a response's stream. Whoever tells it, and whenever: the same events under the same numbers.

    `after`: events up to this number are left out."""

    def __init__(self, told: Told, after: int = -1) -> None:
        self._told = told
        self._after = after
        self._number = 0
        self._output = Output(told.own)

    def opens(self) -> bytes:
        first = ["created", "queued", "in_progress"] if self._told.background else ["created", "in_progress"]
        begun = "queued" if self._told.background else "in_progress"
        statuses = [begun, *first[1:]]
        return self._write(
            [(f"response.{kind}", self._response(status)) for kind, status in zip(first, statuses, strict=True)]
        )

    def says(self, parts: Sequence[Part]) -> bytes:
        return b"".join(self._write(self._output.push(part)) for part in parts)

    def ends(self) -> bytes:
        """Of a response that has ended by itself, or was cancelled."""
        told = self._told
        assert told.end is not None
        events = self._output.finish(whole=told.end.outcome is Outcome.STOP)
        last = _LAST[told.status], {"response": told.object(output=self._output.items())}
        return self._write([*events, last])

    def fails(self) -> bytes:
        """Of one that has failed: an error as all routes have them (rule E3), then the failed response."""
        told = self._told
        assert told.error is not None
        flat = {name: told.error[name] for name in ("code", "message", "param")}
        failed = {"response": told.object(output=self._output.items("incomplete"))}
        return self._write([("error", {**flat, "error": told.error}), ("response.failed", failed)])

    def _response(self, status: str) -> dict[str, Any]:
        return {"response": self._told.object(status, [])}

    def _write(self, events: list[Event]) -> bytes:
        data = b""
        for kind, fields in events:
            if self._number > self._after:
                data += sse({"type": kind, "sequence_number": self._number, **fields}, kind)
            self._number += 1
        return data


class ResponseVoice:
    """`explain`: an error in the words of this route."""

    def __init__(self, told: Told, explain: Callable[[ApiError], ApiError]) -> None:
        self._told = told
        self._teller = Teller(told)
        self._explain = explain

    def opens(self, choice: Choice) -> bytes:
        self._told.begun = True
        return self._teller.opens()

    def says(self, choice: Choice, parts: Sequence[Part]) -> bytes:
        return self._teller.says(parts)

    def ends(self, choice: Choice) -> bytes:
        return b""

    def closes(self, choices: Sequence[Choice]) -> bytes:
        return self._teller.ends()

    def fails(self, error: ApiError, request_id: str) -> bytes:
        if self._told.error is None:
            self._told.fail(self._explain(error), request_id)
        return self._teller.fails()

    def waits(self) -> bytes:
        return KEEP_ALIVE

    def whole(self, choices: Sequence[Choice]) -> bytes:
        return orjson.dumps(self._told.object())


def told_again(told: Told, after: int = -1) -> bytes:
    """The whole stream of a response that is over."""
    teller = Teller(told, after)
    data = teller.opens() + teller.says(told.parts)
    return data + (teller.fails() if told.error is not None else teller.ends())
