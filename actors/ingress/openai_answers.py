"""What the OpenAI routes answer: one object, or the chunks of a stream. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from actors.ingress.choices import Choice
from actors.ingress.errors import ApiError
from actors.ingress.logprobs import TokenBytes, Told, chat_logprobs, completion_logprobs
from actors.messages import Finished, Outcome
from actors.replies.parts import CallArguments, CallBegins, Part, ReasoningPart, TextPart

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """What never changes over an answer's chunks. `created` is Unix time."""

    rid: str
    created: int
    model: str

    def fields(self, kind: str) -> dict[str, Any]:
        return {"id": self.rid, "object": kind, "created": self.created, "model": self.model}


class _ChunkVoice:
    """What the two have in common. `chunks`: what the API calls a piece of a stream."""

    chunks: str

    def __init__(self, head: Head, *, include_usage: bool, token_bytes: TokenBytes | None) -> None:
        self._head = head
        self._include_usage = include_usage
        self._token_bytes = token_bytes

    def closes(self, choices: Sequence[Choice]) -> bytes:
        if not self._include_usage:
            return DONE
        return event({**self._head.fields(self.chunks), "choices": [], "usage": usage(choices)}) + DONE

    def fails(self, error: ApiError, request_id: str) -> bytes:
        return error_event(error, request_id) + DONE

    def waits(self) -> bytes:
        return KEEP_ALIVE


class ChatVoice(_ChunkVoice):
    """POST /v1/chat/completions. `token_bytes`: for log probabilities, where they were asked for."""

    chunks = "chat.completion.chunk"

    def __init__(self, head: Head, *, include_usage: bool, token_bytes: TokenBytes | None = None) -> None:
        super().__init__(head, include_usage=include_usage, token_bytes=token_bytes)

    def opens(self, choice: Choice) -> bytes:
        return self._chunk(choice, {"role": "assistant", "content": ""})

    def says(self, choice: Choice, parts: Sequence[Part]) -> bytes:
        deltas = [delta_of(part) for part in parts]
        told = self._logprobs(choice.fresh_logprobs)
        if told is not None and not deltas:
            deltas = [{"content": ""}]  # Their text is held back still.
        return b"".join(
            self._chunk(choice, delta, logprobs=told if at == 0 else None) for at, delta in enumerate(deltas)
        )

    def ends(self, choice: Choice) -> bytes:
        return self._chunk(choice, {}, finish_reason(choice), choice.extras)

    def whole(self, choices: Sequence[Choice]) -> bytes:
        told = [
            _choice(choice, "message", message_of(choice), finish_reason(choice), self._logprobs(choice.logprobs))
            for choice in choices
        ]
        fields = {"choices": told, "usage": usage(choices), **choices[0].extras}
        return orjson.dumps({**self._head.fields("chat.completion"), **fields})

    def _chunk(
        self,
        choice: Choice,
        delta: dict[str, Any],
        finish: str | None = None,
        extras: Mapping[str, Any] | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> bytes:
        told = [_choice(choice, "delta", delta, finish, logprobs)]
        return event({**self._head.fields(self.chunks), "choices": told, **(extras or {})})

    def _logprobs(self, told: Sequence[Told]) -> dict[str, Any] | None:
        return chat_logprobs(told, self._token_bytes) if self._token_bytes is not None and told else None


class CompletionVoice(_ChunkVoice):
    """POST /v1/completions. `echoes[i]`: what reply i begins with, if its prompt is to be repeated. `token_bytes`: for
    log probabilities, where they were asked for."""

    chunks = "text_completion"

    def __init__(
        self,
        head: Head,
        *,
        include_usage: bool,
        echoes: Sequence[str] = (),
        token_bytes: TokenBytes | None = None,
    ) -> None:
        super().__init__(head, include_usage=include_usage, token_bytes=token_bytes)
        self._offsets: dict[int, int] = {}
        """Characters of each reply whose log probabilities were told."""
        self._echoes = echoes

    def opens(self, choice: Choice) -> bytes:
        if not self._echoes:
            return b""
        return self._chunk(choice, self._echo(choice), logprobs=self._logprobs(choice, choice.scores))

    def says(self, choice: Choice, parts: Sequence[Part]) -> bytes:
        text = "".join(part.text for part in parts if isinstance(part, TextPart))
        told = self._logprobs(choice, choice.fresh_logprobs)
        return self._chunk(choice, text, logprobs=told) if text or told is not None else b""

    def ends(self, choice: Choice) -> bytes:
        return self._chunk(choice, "", finish_reason(choice), choice.extras)

    def whole(self, choices: Sequence[Choice]) -> bytes:
        told = [
            _choice(
                choice,
                "text",
                self._echo(choice) + choice.text,
                finish_reason(choice),
                self._logprobs(choice, [*choice.scores, *choice.logprobs]),
            )
            for choice in choices
        ]
        fields = {"choices": told, "usage": usage(choices), **choices[0].extras}
        return orjson.dumps({**self._head.fields("text_completion"), **fields})

    def _echo(self, choice: Choice) -> str:
        return self._echoes[choice.index] if self._echoes else ""

    def _chunk(
        self,
        choice: Choice,
        text: str,
        finish: str | None = None,
        extras: Mapping[str, Any] | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> bytes:
        told = [_choice(choice, "text", text, finish, logprobs)]
        return event({**self._head.fields("text_completion"), "choices": told, **(extras or {})})

    def _logprobs(self, choice: Choice, told: Sequence[Told]) -> dict[str, Any] | None:
        if self._token_bytes is None or not told:
            return None
        offset = self._offsets.get(choice.index, 0)
        shown = completion_logprobs(told, self._token_bytes, offset)
        self._offsets[choice.index] = offset + sum(map(len, shown["tokens"]))
        return shown


def event(tree: Mapping[str, Any], name: str = "") -> bytes:
    """One SSE event."""
    prefix = f"event: {name}\n".encode() if name else b""
    return prefix + b"data: " + orjson.dumps(tree) + b"\n\n"


def error_event(error: ApiError, request_id: str) -> bytes:
    return event(error.body(request_id), "error")


def finish_reason(choice: Choice) -> str:
    """Raises AssertionError for a choice that has not ended."""
    end = _end(choice)
    if end.outcome is Outcome.STOP and choice.calls:
        return "tool_calls"
    return "abort" if end.outcome is Outcome.ABORT else str(end.outcome.value)


def usage(choices: Sequence[Choice]) -> dict[str, Any]:
    """Of all replies together; a prompt counts once, however many replies it has (rule E5)."""
    prompts: dict[int, Finished] = {}
    for choice in choices:
        prompts.setdefault(choice.prompt, _end(choice))
    prompt = sum(end.prompt_tokens for end in prompts.values())
    completion = sum(_end(choice).completion_tokens for choice in choices)
    told = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(end.cached_tokens for end in prompts.values())},
    }
    reasoning = [choice.reasoning_tokens for choice in choices if choice.reasoning_tokens is not None]
    return {**told, "completion_tokens_details": {"reasoning_tokens": sum(reasoning)}} if reasoning else told


def message_of(choice: Choice) -> dict[str, Any]:
    """A reply as one message."""
    reasoning = "".join(part.text for part in choice.parts if isinstance(part, ReasoningPart))
    calls = calls_of(choice.parts)
    message: dict[str, Any] = {"role": "assistant", "content": choice.text or (None if calls else "")}
    message["refusal"] = None
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def calls_of(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """The tool calls among a reply's parts."""
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        if isinstance(part, CallBegins):
            function = {"name": part.name, "arguments": ""}
            calls[part.number] = {"id": part.call_id, "type": "function", "function": function}
        elif isinstance(part, CallArguments):
            calls[part.number]["function"]["arguments"] += part.text
    return list(calls.values())


def delta_of(part: Part) -> dict[str, Any]:
    """A part as the `delta` of a chat chunk."""
    match part:
        case TextPart(text):
            return {"content": text}
        case ReasoningPart(text):
            return {"reasoning_content": text}
        case CallBegins(number, call_id, name):
            call = {"index": number, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
            return {"tool_calls": [call]}
        case CallArguments(number, text):
            return {"tool_calls": [{"index": number, "function": {"arguments": text}}]}


def _end(choice: Choice) -> Finished:
    assert choice.end is not None, "asked for the end of a reply that goes on"
    return choice.end


def _choice(
    choice: Choice, kind: str, content: Any, finish: str | None, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": choice.index, kind: content, "logprobs": logprobs, "finish_reason": finish}
