"""What the ingress knows of a model: how chats become token ids, and token ids text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from actors.model.chat_template import Ends
from actors.replies.formats import PLAIN, ReplyFormat

Messages = Sequence[Mapping[str, Any]]


class Turn(Protocol):
    """Ids that go on with a conversation: `close_ids` end the previous message, `input_ids` are what is new."""

    @property
    def close_ids(self) -> Sequence[int]: ...

    @property
    def input_ids(self) -> Sequence[int]: ...


class Template(Protocol):
    """A chat template. Both raise ValueError, with a message for people, for messages that the template refuses."""

    def render_root(
        self,
        messages: Messages,
        tools: Sequence[Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        ends: Ends = Ends.REPLY,
    ) -> Sequence[int]:
        """A whole conversation, up to where the assistant's reply begins. `extra`: more variables of the template."""

    def render_turn(
        self,
        messages: Messages,
        tools: Sequence[Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        ends: Ends = Ends.REPLY,
    ) -> Turn:
        """New messages of a conversation that exists already."""


class Decoder(Protocol):
    """Token ids → text that is valid at every piece (rule I2)."""

    def push(self, ids: Sequence[int]) -> str: ...

    def finish(self, matched: str | None) -> str:
        """What was held back, cut before the stop string `matched`."""


class DecoderMaker(Protocol):
    """The decoder of a reply that ends at one of `stop`. `marks`: control tokens that are shown, and how."""

    def __call__(self, stop: Sequence[str], marks: Mapping[int, str] | None = None) -> Decoder: ...


@dataclass(frozen=True, slots=True)
class TextModel:
    """`max_context` is in tokens; `max_token_bytes` the longest text one token can stand for. `encode`: the ids of a
    text that stands alone; control tokens spelled in it are text. `token_bytes`: a token as it is spelled, control
    tokens included. `replies`: how the model writes tool calls and reasoning."""

    name: str
    template: Template
    decoder: DecoderMaker
    vocab_size: int
    max_context: int
    max_token_bytes: int
    encode: Callable[[str], Sequence[int]]
    token_bytes: Callable[[int], bytes]
    replies: ReplyFormat = PLAIN
