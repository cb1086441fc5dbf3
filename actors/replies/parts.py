"""What a reply's text consists of, for whoever tells a client: text, reasoning, tool calls. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class TextPart:
    """`logprobs`: of its tokens, as whoever reads the reply wants to tell them; where they are asked for."""

    text: str
    logprobs: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """Text that the model wrote before its answer, for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A tool call: its name is known, its arguments follow. `number` counts the calls of one reply from 0. `call_id` is
    made of that and of the request's name, by whoever knows both."""

    number: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON text of a call's arguments."""

    number: int
    text: str


Part = TextPart | ReasoningPart | CallBegins | CallArguments


class PartReader(Protocol):
    """Splits one reply. The parts' texts do not depend on how the text was cut into pieces."""

    def push(self, text: str) -> list[Part]:
        """What these characters make certain."""

    def finish(self) -> list[Part]:
        """What was held back."""

    @property
    def held(self) -> int:
        """How many of the characters pushed may still be shown."""


class PlainReader:
    """A model that neither reasons nor calls: all is text."""

    def push(self, text: str) -> list[Part]:
        return [TextPart(text)] if text else []

    def finish(self) -> list[Part]:
        return []

    @property
    def held(self) -> int:
        return 0
