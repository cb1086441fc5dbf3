"""One question, as each API puts it, and its answer in words that all have in common."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.ingress.asgi import Call, Client


@dataclass(frozen=True, slots=True)
class Asked:
    """`text`: what the user says; `prompt`, `ids`: the same as the chat template has it; `prompt` empty: no text is
    tokenised to `ids`."""

    text: str
    ids: tuple[int, ...]
    prompt: str = ""
    max_tokens: int = 8
    temperature: float = 0.0
    seed: int = 0
    stop: str = ""
    stop_token: int | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """As OpenAI's APIs call them."""
        told: dict[str, Any] = {"temperature": self.temperature, "seed": self.seed, "max_tokens": self.max_tokens}
        if self.stop:
            told["stop"] = [self.stop]
        if self.stop_token is not None:
            told["stop_token_ids"] = [self.stop_token]
        return told


@dataclass(frozen=True, slots=True)
class Told:
    """`finish`: `stop` or `length`."""

    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Dialect:
    """`path`, `body` and the readers `whole` and `streamed` of an answer's JSON and of a stream's events."""

    path = ""

    def body(self, asked: Asked) -> dict[str, Any]:
        raise NotImplementedError

    def whole(self, answer: Any) -> Told:
        raise NotImplementedError

    def streamed(self, events: list[Any]) -> Told:
        raise NotImplementedError

    async def call(self, client: Client, asked: Asked, *, stream: bool, **fields: Any) -> Call:
        call = await client.start("POST", self.path, {**self.body(asked), "stream": stream, **fields}).whole()
        assert call.status == 200, call.body
        return call

    async def ask(self, client: Client, asked: Asked, *, stream: bool, **fields: Any) -> Told:
        call = await self.call(client, asked, stream=stream, **fields)
        return self.streamed(call.events) if stream else self.whole(call.json())


class Chat(Dialect):
    path = "/v1/chat/completions"

    def body(self, asked: Asked) -> dict[str, Any]:
        messages = [{"role": "user", "content": asked.text}]
        return {"messages": messages, "stream_options": {"include_usage": True}, **asked.settings}

    def whole(self, answer: Any) -> Told:
        choice = answer["choices"][0]
        return _openai(choice["message"]["content"] or "", choice["finish_reason"], answer["usage"])

    def streamed(self, events: list[Any]) -> Told:
        return _openai_stream(events, lambda choice: choice["delta"].get("content") or "")


@dataclass(frozen=True, slots=True)
class Completion(Dialect):
    """`as_ids`: the prompt is told in ids."""

    as_ids: bool

    path = "/v1/completions"

    def body(self, asked: Asked) -> dict[str, Any]:
        prompt = list(asked.ids) if self.as_ids else asked.prompt
        return {"prompt": prompt, "stream_options": {"include_usage": True}, **asked.settings}

    def whole(self, answer: Any) -> Told:
        choice = answer["choices"][0]
        return _openai(choice["text"], choice["finish_reason"], answer["usage"])

    def streamed(self, events: list[Any]) -> Told:
        return _openai_stream(events, lambda choice: choice["text"])


@dataclass(frozen=True, slots=True)
class Native(Dialect):
    """SGLang's."""

    as_ids: bool

    path = "/generate"

    def body(self, asked: Asked) -> dict[str, Any]:
        settings = {**asked.settings, "sampling_seed": asked.seed, "max_new_tokens": asked.max_tokens}
        del settings["seed"], settings["max_tokens"]
        prompt: dict[str, Any] = {"input_ids": list(asked.ids)} if self.as_ids else {"text": asked.prompt}
        return {**prompt, "sampling_params": settings}

    def whole(self, answer: Any) -> Told:
        meta = answer["meta_info"]
        counts = (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"])
        return Told(answer["text"], meta["finish_reason"]["type"], *counts)

    def streamed(self, events: list[Any]) -> Told:
        """Each event has all of the text so far."""
        texts = [event["text"] for event in events[:-1]]
        assert all(after.startswith(before) for before, after in itertools.pairwise(texts))
        return self.whole(events[-2])


class Responses(Dialect):
    path = "/v1/responses"

    def body(self, asked: Asked) -> dict[str, Any]:
        settings = asked.settings
        return {"input": asked.text, "max_output_tokens": settings.pop("max_tokens"), **settings}

    def whole(self, answer: Any) -> Told:
        parts = [part for item in answer["output"] for part in item["content"]]
        usage, why = answer["usage"], answer["incomplete_details"]
        assert (answer["status"] == "completed") == (why is None)
        finish = "stop" if why is None else {"max_output_tokens": "length"}[why["reason"]]
        cached = usage["input_tokens_details"]["cached_tokens"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        text = "".join(part["text"] for part in parts)
        return Told(text, finish, usage["input_tokens"], usage["output_tokens"], cached)

    def streamed(self, events: list[Any]) -> Told:
        told = self.whole(events[-1]["response"])
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == told.text
        return told


class Messages(Dialect):
    """Anthropic's."""

    path = "/v1/messages"

    def body(self, asked: Asked) -> dict[str, Any]:
        settings = asked.settings
        if asked.stop:
            settings["stop_sequences"] = settings.pop("stop")
        return {"messages": [{"role": "user", "content": asked.text}], **settings}

    def whole(self, answer: Any) -> Told:
        text = "".join(block["text"] for block in answer["content"])
        return self._told(text, answer, answer["usage"])

    def streamed(self, events: list[Any]) -> Told:
        deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
        (last,) = (event for event in events if event["type"] == "message_delta")
        return self._told("".join(deltas), last["delta"], last["usage"])

    def _told(self, text: str, ended: Mapping[str, Any], usage: Mapping[str, Any]) -> Told:
        finish = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}[ended["stop_reason"]]
        cached = usage["cache_read_input_tokens"]
        return Told(text, finish, usage["input_tokens"] + cached, usage["output_tokens"], cached)


def _openai(text: str, finish: str, usage: Mapping[str, Any]) -> Told:
    counts = (usage["prompt_tokens"], usage["completion_tokens"])
    assert usage["total_tokens"] == sum(counts)
    return Told(text, finish, *counts, usage["prompt_tokens_details"]["cached_tokens"])


def _openai_stream(events: list[Any], text_of: Any) -> Told:
    assert events[-1] == "[DONE]"
    choices = [event["choices"][0] for event in events[:-1] if event["choices"]]
    (finish,) = (choice["finish_reason"] for choice in choices if choice["finish_reason"])
    return _openai("".join(map(text_of, choices)), finish, events[-2]["usage"])


ALL: dict[str, Dialect] = {
    "chat": Chat(),
    "completion of text": Completion(as_ids=False),
    "completion of ids": Completion(as_ids=True),
    "native text": Native(as_ids=False),
    "native ids": Native(as_ids=True),
    "response": Responses(),
    "message": Messages(),
}
