"""Chats that always send the whole conversation, in a session: `session.messages: "all"` (rules S1, S3, T6). Pure.

Most chat programs do. Their turns are named by what led to them, so that the worker can tell what of a conversation the
session has already (see `actors.engine.matching`): that is gone on with, by its own tokens and its KV; where the client
has edited something, a branch begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from actors.ingress.generation import GenerationRequest
from actors.ingress.prompts import ChatPrompt, Continues, Prompt
from actors.ingress.text import TextModel
from actors.messages import Notation
from actors.model.chat_template import Ends
from actors.replies.alike import canonical_call
from actors.replies.formats import ReplyFormat

STEM = "whole-"


class WholeChatPrompt(ChatPrompt):
    """All messages of a conversation, as its beginning; and those behind its last reply, as what goes on with it."""

    __slots__ = ()

    def render(self, text: TextModel, continues: Continues | None) -> Prompt:
        """Raises ValueError when the template refuses the conversation as a whole."""
        root = tuple(text.template.render_root(self.messages, self.tools, self.extra, self.ends))
        at = _last_reply(self)
        if at is None:
            return Prompt({"input_ids": root, "root_ids": root})
        try:
            turn = text.template.render_turn(self.messages[at + 1 :], self.tools, self.extra, self.ends)
        except ValueError as error:
            return Prompt({"input_ids": root, "root_ids": root}, turn_refused=str(error))
        return Prompt({"input_ids": tuple(turn.input_ids), "root_ids": root, "close_ids": tuple(turn.close_ids)})


def as_whole(request: GenerationRequest, prompt: ChatPrompt, replies: ReplyFormat) -> GenerationRequest:
    """The request, if it says that its messages are the whole conversation, so that it is met with the session."""
    use = request.session
    if use is None or not use.whole:
        return request
    at = _last_reply(prompt)
    if at is not None:
        reply, reasoning = (prompt.messages[at].get(name, "") for name in ("content", "reasoning_content"))
        use = replace(use, stem=_stem(prompt, at), reply=reply, reasoning=reasoning)
        if calls := prompt.messages[at].get("tool_calls"):
            use = replace(use, calls=tuple(map(_canonical, calls)), notation=_notation(prompt, replies))
    whole = WholeChatPrompt(prompt.messages, prompt.tools, prompt.extra, prompt.field, prompt.demand, prompt.ends)
    name = f"{_stem(prompt, len(prompt.messages))}~{request.rid}"
    return replace(request, prompts=(whole,), session=use, names=(name,))


def _last_reply(prompt: ChatPrompt) -> int | None:
    """Where it is, if something follows it. One that calls what was not there to be called is none of ours; nor is the
    beginning of the reply that is asked for."""
    said = prompt.messages[:-1] if prompt.ends is Ends.CONTINUED else prompt.messages
    replies = [at for at, message in enumerate(said) if message["role"] == "assistant"]
    if not replies or replies[-1] == len(prompt.messages) - 1:
        return None
    return None if prompt.messages[replies[-1]].get("tool_calls") and not prompt.tools else replies[-1]


def _stem(prompt: ChatPrompt, count: int) -> str:
    """Stands for the first `count` messages, and for whatever else the prompt is made of."""
    messages = _without_names(prompt.messages[:count])
    canonical = orjson.dumps([messages, prompt.tools, dict(prompt.extra)], option=orjson.OPT_SORT_KEYS)
    return STEM + hashlib.blake2b(canonical, digest_size=16).hexdigest()


def _without_names(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages, whatever a client calls the calls in them, and however it writes their arguments."""
    numbers: dict[str, int] = {}
    found = []
    for message in messages:
        plain = dict(message)
        calls = plain.pop("tool_calls", ())
        for call in calls:
            numbers[call["id"]] = len(numbers)
        if calls:
            plain["tool_calls"] = [_canonical(call) for call in calls]
        if plain.get("tool_call_id") in numbers:
            plain["tool_call_id"] = numbers[plain["tool_call_id"]]
        found.append(plain)
    return found


def _canonical(call: Mapping[str, Any]) -> str:
    function = call["function"]
    return canonical_call(function["name"], function["arguments"])


def _notation(prompt: ChatPrompt, replies: ReplyFormat) -> Notation | None:
    """How the reply was read when it was told."""
    if replies.tools is None:
        return None
    tags = replies.reasoning
    return Notation(
        calls=replies.tools.value,
        tools=orjson.dumps(prompt.tools).decode(),
        reasoning=(tags.begins, tags.ends) if tags else (),
        marks=tuple((token, marker) for marker, token in replies.token_ids.items()),
    )
