"""What POST /v1/messages answers: one message, or the events of a stream. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from actors.ingress.choices import Choice
from actors.ingress.cut_json import read_as_far_as_it_goes
from actors.ingress.error_shapes import anthropic_error
from actors.ingress.errors import ApiError
from actors.ingress.openai_answers import event
from actors.messages import Finished, Outcome
from actors.replies.parts import CallArguments, CallBegins, Part, ReasoningPart, TextPart

PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessageVoice:
    """One message of content blocks: text, thinking, tool_use, in the order in which the model wrote them.

    Of a stream, `message_start` says what is known of the usage by then; `message_delta`, at the end, all of it.
    """

    def __init__(self, rid: str, model: str) -> None:
        self._rid = rid
        self._model = model
        self._blocks = 0
        self._open: type[Part] | None = None

    def opens(self, choice: Choice) -> bytes:
        prompt_tokens = len(choice.running.call.submit.input_ids)
        message = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None}
        message["usage"] = _usage(prompt_tokens, 0, 0)
        return _event({"type": "message_start", "message": message})

    def says(self, choice: Choice, parts: Sequence[Part]) -> bytes:
        return b"".join(self._say(part) for part in parts)

    def ends(self, choice: Choice) -> bytes:
        delta = dict(zip(("stop_reason", "stop_sequence"), stop_of(choice), strict=True))
        told = {"type": "message_delta", "delta": delta, "usage": usage_of(choice), **choice.extras}
        return self._close() + _event(told)

    def closes(self, choices: Sequence[Choice]) -> bytes:
        return _event({"type": "message_stop"})

    def fails(self, error: ApiError, request_id: str) -> bytes:
        return event(anthropic_error(error, request_id), "error") + _event({"type": "message_stop"})

    def waits(self) -> bytes:
        return PING

    def whole(self, choices: Sequence[Choice]) -> bytes:
        (choice,) = choices
        reason, sequence = stop_of(choice)
        message = {**self._head(), "content": blocks_of(choice.parts), "stop_reason": reason, "stop_sequence": sequence}
        return orjson.dumps({**message, "usage": usage_of(choice), **choice.extras})

    def _head(self) -> dict[str, Any]:
        return {"id": self._rid, "type": "message", "role": "assistant", "model": self._model}

    def _say(self, part: Part) -> bytes:
        """A part as a delta of the open block, after another one has been opened for it where it needs that."""
        match part:
            case TextPart(text):
                return self._block(TextPart, {"type": "text", "text": ""}) + self._delta("text_delta", text=text)
            case ReasoningPart(text):
                begin = self._block(ReasoningPart, {"type": "thinking", "thinking": "", "signature": ""})
                return begin + self._delta("thinking_delta", thinking=text)
            case CallBegins(_, call_id, name):
                return self._close() + self._block(
                    CallBegins, {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                )
            case CallArguments(_, text):
                return self._delta("input_json_delta", partial_json=text)

    def _block(self, kind: type[Part], empty: dict[str, Any]) -> bytes:
        if self._open is kind:
            return b""
        data = self._close()
        self._open = kind
        return data + _event({"type": "content_block_start", "index": self._blocks, "content_block": empty})

    def _delta(self, kind: str, **what: str) -> bytes:
        return _event({"type": "content_block_delta", "index": self._blocks, "delta": {"type": kind, **what}})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        self._blocks += 1
        return _event({"type": "content_block_stop", "index": self._blocks - 1})


def blocks_of(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """The content blocks of a whole reply. The input of a call that was cut, or is wrong, is what can be read of it."""
    blocks: list[dict[str, Any]] = []
    arguments: dict[int, str] = {}
    for part in parts:
        match part:
            case TextPart(text):
                _append(blocks, "text", text, {"type": "text", "text": ""})
            case ReasoningPart(text):
                _append(blocks, "thinking", text, {"type": "thinking", "thinking": "", "signature": ""})
            case CallBegins(_, call_id, name):
                blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case CallArguments(_, text):
                arguments[len(blocks) - 1] = arguments.get(len(blocks) - 1, "") + text
    for index, text in arguments.items():
        value = read_as_far_as_it_goes(text)
        if value is not None:
            blocks[index]["input"] = value
    return blocks


def _append(blocks: list[dict[str, Any]], kind: str, text: str, empty: dict[str, Any]) -> None:
    if not blocks or blocks[-1]["type"] != kind:
        blocks.append(empty)
    blocks[-1][kind] += text


def stop_of(choice: Choice) -> tuple[str, str | None]:
    """(stop_reason, stop_sequence). `abort` is ours (rule E3): Anthropic's API has no word for it, and any of its own
    would make an unfinished reply look finished."""
    end = _end(choice)
    if end.outcome is Outcome.ABORT:
        return "abort", None
    if end.outcome is Outcome.LENGTH:
        return "max_tokens", None
    if end.matched is not None:
        return "stop_sequence", end.matched
    return ("tool_use" if choice.calls else "end_turn"), None


def usage_of(choice: Choice) -> dict[str, Any]:
    """Rule E5. The prompt is the sum of what was cached and what was not."""
    end = _end(choice)
    return _usage(end.prompt_tokens, end.cached_tokens, end.completion_tokens)


def _usage(prompt: int, cached: int, completion: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": completion,
    }


def _event(tree: dict[str, Any]) -> bytes:
    return event(tree, tree["type"])


def _end(choice: Choice) -> Finished:
    assert choice.end is not None, "asked for the end of a reply that goes on"
    return choice.end
