"""Chat messages -> token ids, by the model's own template.

A conversation is opened with `render_root`. It goes on with `render_turn`: the ids of what is new, to be put behind
the ids that are there, which are never rendered again (rules S1, S4).
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import jinja2

from actors.model.errors import ModelUnusable
from actors.model.jinja_env import environment, variables_of
from actors.model.literal_text import LiteralText
from actors.model.tokenizer import Span, Tokenizer

Messages = Sequence[Mapping[str, Any]]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""For models without a template whose vocabulary has ChatML's tokens. Models with neither cannot chat."""


_NINE = re.compile(r"length\s*\)?\s*!=\s*9\b")
_NINE_LETTERS = re.compile(r"[a-zA-Z0-9]{9}")


class Ends(Enum):
    """Where a prompt ends. REPLY: where a reply begins. CONTINUED: within its last message, which is a reply that goes
    on. BARE: behind its last message."""

    REPLY = auto()
    CONTINUED = auto()
    BARE = auto()


class TemplateRefused(ValueError):
    """The template does not take these messages. Says why."""


@dataclass(frozen=True, slots=True)
class TurnIds:
    """What is put behind a reply: `close_ids` end it, unless it ended itself; `input_ids` are the new messages, up to
    where the next reply begins."""

    close_ids: tuple[int, ...]
    input_ids: tuple[int, ...]


class ChatTemplate:
    """The templates of one model. Used from any thread.

    `unusable`: why this model cannot chat, None if it can. `sessions_supported`: None if conversations can go on by
    `render_turn`; otherwise why not. Messages are as in the OpenAI API.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._env = environment()
        self._templates: dict[str, jinja2.Template] = {}
        self.takes_tools = False
        self._nine = False
        """The template takes ids of calls of nine letters only: Mistral's."""
        self.unusable: str | None = None
        sources = dict(tokenizer.templates)
        if "default" not in sources:
            if tokenizer.control_id("<|im_start|>") is None or tokenizer.control_id("<|im_end|>") is None:
                self.unusable = (
                    "the model has no chat template, and no ChatML tokens for the default one: put a "
                    "chat_template.jinja into its folder, or send plain prompts"
                )
                self.sessions_supported: str | None = self.unusable
                return
            sources["default"] = CHATML
        for name, source in sources.items():
            self._compile(name, source)
        self.sessions_supported = self._why_no_sessions()

    def render_root(
        self,
        messages: Messages,
        tools: Sequence[Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        ends: Ends = Ends.REPLY,
    ) -> list[int]:
        """The ids of a conversation, up to where the assistant's reply begins. `extra`: more template variables.

        Raises TemplateRefused.
        """
        literal = LiteralText(self._tokenizer)
        hidden = literal.hide(self._as_it_takes_them(messages))
        text, spans = literal.reveal(self._render(hidden, tools, extra, literal, ends))
        return self._tokenizer.encode_template(text, spans)

    def render_turn(
        self,
        messages: Messages,
        tools: Sequence[Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        ends: Ends = Ends.REPLY,
    ) -> TurnIds:
        """The ids that go on with a conversation whose last message is a reply. Raises TemplateRefused."""
        if self.sessions_supported is not None:
            raise TemplateRefused(self.sessions_supported)
        text, spans = self._tail(_opening("Hello"), messages, tools, extra, ends)
        ids = self._tokenizer.encode_template(text, spans, continued=True)
        closes = 1 if ids and ids[0] in self._tokenizer.eos_ids else 0
        return TurnIds(tuple(ids[:closes]), tuple(ids[closes:]))

    def _tail(
        self,
        before: Messages,
        new_messages: Messages,
        tools: Sequence[Any] | None,
        extra: Mapping[str, Any] | None,
        ends: Ends = Ends.REPLY,
    ) -> tuple[str, list[Span]]:
        """What the template writes behind a reply to `before`, and which spans of it are literal text.

        The reply is a random word that nobody else can write, so that its end can be found.
        """
        reply = f"r{secrets.token_hex(12)}y"
        literal = LiteralText(self._tokenizer)
        conversation = [
            *before,
            {"role": "assistant", "content": reply},
            *literal.hide(self._as_it_takes_them(new_messages)),
        ]
        parts = self._render(conversation, tools, extra, literal, ends).split(reply)
        if len(parts) != 2:
            raise TemplateRefused(f"the chat template shows an earlier reply {len(parts) - 1} times, not once")
        return literal.reveal(parts[1])

    def _render(
        self,
        messages: Messages,
        tools: Sequence[Any] | None,
        extra: Mapping[str, Any] | None,
        literal: LiteralText,
        ends: Ends,
    ) -> str:
        """The text of these messages; one that is continued stands at its end as it is, whatever a template does to
        what is finished (trim it, or take reasoning out of it)."""
        if ends is not Ends.CONTINUED:
            return self._filled_in(messages, tools, extra, literal, add_generation_prompt=ends is Ends.REPLY)
        word = f"r{secrets.token_hex(12)}y"
        told = [*messages[:-1], {**messages[-1], "content": word}]
        parts = self._filled_in(told, tools, extra, literal, add_generation_prompt=False).split(word)
        if len(parts) != 2:
            raise TemplateRefused(
                f"the chat template shows the message to be continued {len(parts) - 1} times, not once"
            )
        return parts[0] + str(messages[-1]["content"])

    def _filled_in(
        self,
        messages: Messages,
        tools: Sequence[Any] | None,
        extra: Mapping[str, Any] | None,
        literal: LiteralText,
        *,
        add_generation_prompt: bool,
    ) -> str:
        if self.unusable is not None:
            raise TemplateRefused(self.unusable)
        template = self._templates.get("tool_use") if tools else None
        if template is None:
            template = self._templates["default"]
        variables = {
            **self._tokenizer.special_names,
            "documents": None,
            **literal.hide_value(dict(extra or {})),
            "messages": messages,
            "tools": literal.hide_value(list(tools)) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return template.render(variables)
        except jinja2.TemplateError as error:
            raise TemplateRefused(f"the model's chat template does not take these messages: {error}") from error
        except Exception as error:  # foreign code that meets values it did not expect
            raise TemplateRefused(
                f"the model's chat template failed on these messages: {type(error).__name__}: {error}"
            ) from error

    def _as_it_takes_them(self, messages: Messages) -> list[dict[str, Any]]:
        told = _as_templates_take_them(messages)
        return [_with_ids_of_nine(message) for message in told] if self._nine else told

    def _compile(self, name: str, source: str) -> None:
        try:
            self._templates[name] = self._env.from_string(source)
            self._nine = self._nine or _NINE.search(source) is not None
            self.takes_tools = self.takes_tools or "tools" in variables_of(self._env, source)
        except jinja2.TemplateError as error:
            raise ModelUnusable(f"the model's chat template {name!r} is broken: {error}") from error

    def _why_no_sessions(self) -> str | None:
        """Try it: what stands behind a reply must be found, hold the new message, and not depend on what was before."""
        new = [{"role": "user", "content": "Nightingale"}]
        longer = [*_opening("Good morning"), {"role": "assistant", "content": "Yes?"}, *_opening("Well")]
        try:
            tail, _ = self._tail(_opening("Hello"), new, None, None)
            other, _ = self._tail(longer, new, None, None)
        except TemplateRefused as error:
            return f"conversations cannot be kept with this model: {error}"
        if "Nightingale" not in tail:
            return "conversations cannot be kept with this model: its chat template leaves out a new message"
        if tail != other:
            return "conversations cannot be kept with this model: its chat template rewrites earlier messages"
        return None


def _opening(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _as_templates_take_them(messages: Messages) -> list[dict[str, Any]]:
    """OpenAI's messages as Hugging Face templates expect them: content is one string (text parts are joined), and the
    arguments of a tool call are an object, not its JSON."""
    return [_one_message(message) for message in messages]


def _one_message(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    changed = {**message, "content": "" if content is None else content}
    if isinstance(content, (list, tuple)):
        changed["content"] = "\n".join(_text_of(part) for part in content)
    if message.get("tool_calls"):
        changed["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    return changed


def _with_ids_of_nine(message: dict[str, Any]) -> dict[str, Any]:
    """A call and its result keep an id in common."""
    changed = dict(message)
    if isinstance(message.get("tool_call_id"), str):
        changed["tool_call_id"] = _of_nine(message["tool_call_id"])
    if message.get("tool_calls"):
        calls = message["tool_calls"]
        changed["tool_calls"] = [
            {**call, "id": _of_nine(call["id"])} if isinstance(call.get("id"), str) else call for call in calls
        ]
    return changed


def _of_nine(name: str) -> str:
    if _NINE_LETTERS.fullmatch(name):
        return name
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).hexdigest()[:9]


def _text_of(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    raise TemplateRefused("this model takes text only: a part of a message has no text")


def _tool_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):  # a model may have written broken JSON: then the template gets it as it is
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call
