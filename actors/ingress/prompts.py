"""Where the ids of a prompt come from: chat messages, plain text, or ids. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from actors.ingress.chat_messages import text_bytes, text_work
from actors.ingress.placement import opening
from actors.ingress.text import TextModel
from actors.messages import TokenIds
from actors.model.chat_template import Ends
from actors.replies.demand import ANY, Demand

PREFIX_CHARACTERS = 512
"""How much of a plain prompt's beginning says that two share a prefix."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The id fields of a `Submit`. `turn_refused`: these messages can begin a conversation but not go on with one
    (a system message, in most templates), and why."""

    ids: dict[str, TokenIds]
    turn_refused: str = ""


@dataclass(frozen=True, slots=True)
class Continues:
    """How a prompt meets its session: `from_head`: behind the last turn, if there is one. `fresh`: as the beginning of
    a conversation; neither: behind the turn that was named."""

    from_head: bool
    fresh: bool


class PromptSource(Protocol):
    """One prompt of a request. `field`: where the client wrote it."""

    @property
    def field(self) -> str: ...

    @property
    def size_bytes(self) -> int:
        """Bytes of text that have to be tokenised: a lower bound for what the prompt holds."""

    @property
    def work(self) -> int:
        """How much `render` has to go through, in bytes of text."""

    @property
    def opening(self) -> str | None:
        """What prompts that begin alike have in common (rule P5)."""

    def render(self, text: TextModel, continues: Continues | None) -> Prompt:
        """`continues` None: there is no session. Raises ValueError, with a message for people."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages, for the model's chat template. `tools` as templates take them, and what is demanded of calls; `extra`:
    more of the template's variables. `ends`: where the prompt does; of one that is CONTINUED the last message is the
    beginning of the reply."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    field: str = "messages"
    demand: Demand = ANY
    ends: Ends = Ends.REPLY

    @property
    def size_bytes(self) -> int:
        return text_bytes(self.messages) + self._tools_bytes

    @property
    def work(self) -> int:
        return text_work(self.messages) + self._tools_bytes

    @property
    def _tools_bytes(self) -> int:
        return len(orjson.dumps(self.tools)) if self.tools else 0

    @property
    def opening(self) -> str | None:
        return opening(self.messages)

    def render(self, text: TextModel, continues: Continues | None) -> Prompt:
        """For a turn both forms, because only the worker knows whether there is history to append to. Raises
        ValueError when the template refuses the messages as a beginning, unless they go on from a named turn."""
        template, more = text.template, (self.tools, self.extra, self.ends)
        if continues is not None and not continues.from_head and not continues.fresh:
            turn = template.render_turn(self.messages, *more)
            return Prompt({"input_ids": tuple(turn.input_ids), "close_ids": tuple(turn.close_ids)})
        root = tuple(template.render_root(self.messages, *more))
        if continues is None:
            return Prompt({"input_ids": root})
        if continues.fresh:
            return Prompt({"input_ids": root, "root_ids": root})
        try:
            turn = template.render_turn(self.messages, *more)
        except ValueError as error:
            return Prompt({"input_ids": root, "root_ids": root}, turn_refused=str(error))
        return Prompt({"input_ids": tuple(turn.input_ids), "root_ids": root, "close_ids": tuple(turn.close_ids)})


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Plain text, tokenised as it is: control tokens spelled in it are text (rule I1)."""

    text: str
    field: str = "prompt"

    @property
    def size_bytes(self) -> int:
        return len(self.text.encode())

    @property
    def work(self) -> int:
        return len(self.text)

    @property
    def opening(self) -> str | None:
        return _digest(self.text[:PREFIX_CHARACTERS].encode())

    def render(self, text: TextModel, continues: Continues | None) -> Prompt:
        return _plain(tuple(text.encode(self.text)), continues)


@dataclass(frozen=True, slots=True)
class IdsPrompt:
    """Token ids, taken as they are."""

    ids: TokenIds
    field: str = "prompt"

    @property
    def size_bytes(self) -> int:
        return 0

    @property
    def work(self) -> int:
        return 0

    @property
    def opening(self) -> str | None:
        return _digest(repr(self.ids[:PREFIX_CHARACTERS]).encode())

    def render(self, text: TextModel, continues: Continues | None) -> Prompt:
        return _plain(self.ids, continues)


def _plain(ids: TokenIds, continues: Continues | None) -> Prompt:
    return Prompt({"input_ids": ids} if continues is None else {"input_ids": ids, "root_ids": ids})


def _digest(data: bytes) -> str | None:
    return f"opening:{hashlib.blake2b(data, digest_size=16).hexdigest()}" if data else None


def total_work(prompts: Sequence[PromptSource]) -> int:
    return sum(prompt.work for prompt in prompts)
