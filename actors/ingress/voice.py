"""How one API says things: the seam between generating a reply and the shapes in which clients know it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from actors.ingress.choices import Choice
from actors.ingress.errors import ApiError
from actors.ingress.generation import GenerationRequest
from actors.ingress.text import TextModel
from actors.replies.parts import Part
from configs import RemoraConfig

INLINE_NUMBERS = 4096
"""With more log probabilities, an answer or a piece of one is not written on the event loop."""


class Voice(Protocol):
    """Writes the answer to one request, whole or as the pieces of a stream (SSE, ready to be sent). Pure."""

    def opens(self, choice: Choice) -> bytes:
        """A reply begins: before any of its parts, once."""

    def says(self, choice: Choice, parts: Sequence[Part]) -> bytes:
        """These parts are new; possibly none."""

    def ends(self, choice: Choice) -> bytes:
        """A reply is complete."""

    def closes(self, choices: Sequence[Choice]) -> bytes:
        """All replies are; nothing follows."""

    def fails(self, error: ApiError, request_id: str) -> bytes:
        """The stream ends with an error; nothing follows."""

    def waits(self) -> bytes:
        """Nothing new, but the connection is alive."""

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """The body of an answer that is not streamed."""


class Api(Protocol):
    """One route that generates."""

    def read(
        self, tree: dict[str, Any], headers: Mapping[str, str], text: TextModel, config: RemoraConfig
    ) -> GenerationRequest:
        """Raises Invalid naming the field."""

    def voice(self, request: GenerationRequest, text: TextModel) -> Voice: ...

    def refusal(self, error: ApiError, request_id: str) -> Mapping[str, Any]:
        """The body of an error that has a status of its own."""


class Keeping(Protocol):
    """What is kept of requests beyond their answers, and done before and after them. For routes that have it."""

    async def arrange(self, request: GenerationRequest) -> GenerationRequest:
        """Once its body was read: the request as it is to be made. Raises ApiError."""

    async def begun(self, choices: Sequence[Choice]) -> None:
        """It is on its way. Raises ApiError."""

    async def ended(self, choices: Sequence[Choice], failure: ApiError | None, request_id: str) -> None:
        """It is over, and the client is told only when this returns. Not called for a client that has left, nor for a
        failure that is the whole answer to a request that is not streamed."""


async def written(numbers: int, write: Callable[[], bytes]) -> bytes:
    """What `write` makes: something with so many log probabilities in it."""
    return write() if numbers <= INLINE_NUMBERS else await asyncio.to_thread(write)
