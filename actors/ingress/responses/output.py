"""The parts of a reply → output items, and the events that tell of them as they grow. Pure.

What is streamed and what is answered at once come from here, so that they are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from actors.replies.parts import CallArguments, CallBegins, Part, TextPart

Event = tuple[str, dict[str, Any]]
"""(type, fields), without its number."""


class _Growing:
    """One item. `kind`: what it is made of."""

    prefix = ""

    def __init__(self, token: str, index: int) -> None:
        self.id = f"{self.prefix}_{token}{index:02d}"
        self.at = {"item_id": self.id, "output_index": index}
        self.index = index
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def item(self, status: str) -> dict[str, Any]:
        raise NotImplementedError

    def begins(self) -> list[Event]:
        return [("response.output_item.added", {"output_index": self.index, "item": self.empty()})]

    def empty(self) -> dict[str, Any]:
        raise NotImplementedError

    def grows(self, text: str, logprobs: Sequence[Any] = ()) -> Event:
        raise NotImplementedError

    def ends(self, status: str) -> list[Event]:
        return [("response.output_item.done", {"output_index": self.index, "item": self.item(status)})]


class _InParts(_Growing):
    """An item that has one content part."""

    kind = ""

    @property
    def _in_part(self) -> dict[str, Any]:
        return {**self.at, "content_index": 0}

    def part(self, text: str) -> dict[str, Any]:
        return {"type": self.kind, "text": text}

    def begins(self) -> list[Event]:
        return [*super().begins(), ("response.content_part.added", {**self._in_part, "part": self.part("")})]

    def grows(self, text: str, logprobs: Sequence[Any] = ()) -> Event:
        self._pieces.append(text)
        return f"response.{self.kind}.delta", {**self._in_part, "delta": text, **self.details(logprobs)}

    def ends(self, status: str) -> list[Event]:
        return [
            (f"response.{self.kind}.done", {**self._in_part, "text": self.text, **self.details(self.logprobs)}),
            ("response.content_part.done", {**self._in_part, "part": self.part(self.text)}),
            *super().ends(status),
        ]

    @property
    def logprobs(self) -> Sequence[Any]:
        """Of all its tokens so far."""
        return ()

    def details(self, logprobs: Sequence[Any]) -> dict[str, Any]:
        return {}


class _Message(_InParts):
    prefix, kind = "msg", "output_text"

    def __init__(self, token: str, index: int) -> None:
        super().__init__(token, index)
        self._logprobs: list[Any] = []

    @property
    def logprobs(self) -> Sequence[Any]:
        return self._logprobs

    def grows(self, text: str, logprobs: Sequence[Any] = ()) -> Event:
        self._logprobs += logprobs
        return super().grows(text, logprobs)

    def part(self, text: str) -> dict[str, Any]:
        logprobs = list(self._logprobs) if text else []
        return {"type": self.kind, "text": text, "annotations": [], "logprobs": logprobs}

    def item(self, status: str) -> dict[str, Any]:
        return {**self.empty(), "status": status, "content": [self.part(self.text)]}

    def empty(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}

    def details(self, logprobs: Sequence[Any]) -> dict[str, Any]:
        return {"logprobs": list(logprobs)}


class _Reasoning(_InParts):
    prefix, kind = "rs", "reasoning_text"

    def item(self, status: str) -> dict[str, Any]:
        return {**self.empty(), "status": status, "content": [self.part(self.text)]}

    def empty(self) -> dict[str, Any]:
        return {"id": self.id, "type": "reasoning", "status": "in_progress", "summary": [], "content": []}


class _Call(_Growing):
    prefix = "fc"

    def __init__(self, token: str, index: int, begins: CallBegins) -> None:
        super().__init__(token, index)
        self._call = begins

    def item(self, status: str) -> dict[str, Any]:
        return {**self.empty(), "status": status, "arguments": self.text}

    def empty(self) -> dict[str, Any]:
        call = {"call_id": self._call.call_id, "name": self._call.name, "arguments": ""}
        return {"id": self.id, "type": "function_call", "status": "in_progress", **call}

    def grows(self, text: str, logprobs: Sequence[Any] = ()) -> Event:
        self._pieces.append(text)
        return "response.function_call_arguments.delta", {**self.at, "delta": text}

    def ends(self, status: str) -> list[Event]:
        told = {**self.at, "name": self._call.name, "arguments": self.text}
        return [("response.function_call_arguments.done", told), *super().ends(status)]


class Output:
    """The output of one response, as far as it has come. `token`: makes the ids of its items."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._done: list[dict[str, Any]] = []
        self._open: _Growing | None = None

    def push(self, part: Part) -> list[Event]:
        if isinstance(part, CallBegins):
            return self._begin(_Call(self._token, self._next(), part))
        if not part.text:
            return []
        events: list[Event] = []
        if not isinstance(part, CallArguments):
            kind = _Message if isinstance(part, TextPart) else _Reasoning
            if not isinstance(self._open, kind):
                events = self._begin(kind(self._token, self._next()))
        assert self._open is not None, "arguments of a call that never began"
        logprobs = part.logprobs if isinstance(part, TextPart) else ()
        return [*events, self._open.grows(part.text, logprobs)]

    def finish(self, *, whole: bool) -> list[Event]:
        """No more comes. `whole`: the reply ended by itself. One that says nothing is an empty message."""
        events = self._begin(_Message(self._token, 0)) if self._next() == 0 else []
        return events + self._close("completed" if whole else "incomplete")

    def items(self, status: str = "in_progress") -> list[dict[str, Any]]:
        """`status`: of the one that has not been closed."""
        return [*self._done, *([self._open.item(status)] if self._open is not None else [])]

    def _next(self) -> int:
        return len(self._done) + (self._open is not None)

    def _begin(self, item: _Growing) -> list[Event]:
        events = self._close("completed")
        self._open = item
        return events + item.begins()

    def _close(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        closing, self._open = self._open, None
        self._done.append(closing.item(status))
        return closing.ends(status)


def output_of(token: str, parts: Iterable[Part]) -> Output:
    output = Output(token)
    for part in parts:
        output.push(part)
    return output
