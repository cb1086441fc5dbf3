"""Chats that always send the whole conversation, in a session: `session.messages: "all"` (rules S1, S3, T6). Pure.

Most chat programs do. Their turns are named by what led to them, so that the worker can tell what of a conversation the
session has already (see `actors.engine.matching`): that is gone on with, by its own tokens and its KV; where the client
has edited something, a branch begins.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import orjson

from actors.ingress.generation import GenerationRequest
from actors.ingress.prompts import ChatPrompt, Continues, Prompt
from actors.ingress.text import TextModel

STEM = "whole-"


class WholeChatPrompt(ChatPrompt):
    """All messages of a conversation, as its beginning; and those behind its last reply, as what goes on with it."""

    __slots__ = ()

    def render(self, text: TextModel, continues: Continues | None) -> Prompt:
        """Raises ValueError when the template refuses the conversation as a whole."""
        root = tuple(text.template.render_root(self.messages, self.tools, self.extra))
        at = _last_reply(self)
        if at is None:
            return Prompt({"input_ids": root, "root_ids": root})
        try:
            turn = text.template.render_turn(self.messages[at + 1 :], self.tools, self.extra)
        except ValueError as error:
            return Prompt({"input_ids": root, "root_ids": root}, turn_refused=str(error))
        return Prompt({"input_ids": tuple(turn.input_ids), "root_ids": root, "close_ids": tuple(turn.close_ids)})


def as_whole(request: GenerationRequest, prompt: ChatPrompt) -> GenerationRequest:
    """The request, if it says that its messages are the whole conversation, so that it is met with the session."""
    use = request.session
    if use is None or not use.whole:
        return request
    at = _last_reply(prompt)
    if at is not None:
        reply, reasoning = (prompt.messages[at].get(name, "") for name in ("content", "reasoning_content"))
        use = replace(use, stem=_stem(prompt, at), reply=reply, reasoning=reasoning)
    whole = WholeChatPrompt(prompt.messages, prompt.tools, prompt.extra, prompt.field, prompt.demand)
    name = f"{_stem(prompt, len(prompt.messages))}~{request.rid}"
    return replace(request, prompts=(whole,), session=use, names=(name,))


def _last_reply(prompt: ChatPrompt) -> int | None:
    """Where it is, if something follows it. One that calls tools is told by its calls, which are not compared."""
    replies = [at for at, message in enumerate(prompt.messages) if message["role"] == "assistant"]
    if not replies or replies[-1] == len(prompt.messages) - 1 or prompt.messages[replies[-1]].get("tool_calls"):
        return None
    return replies[-1]


def _stem(prompt: ChatPrompt, count: int) -> str:
    """Stands for the first `count` messages, and for whatever else the prompt is made of."""
    canonical = orjson.dumps([prompt.messages[:count], prompt.tools, dict(prompt.extra)], option=orjson.OPT_SORT_KEYS)
    return STEM + hashlib.blake2b(canonical, digest_size=16).hexdigest()
