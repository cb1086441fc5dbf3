"""The replies to one request, each with its worker, its text and its end; and the news of all of them in one stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from actors.ingress.attribution import Tell, TracedReader
from actors.ingress.channel import Batch
from actors.ingress.errors import ApiError, from_finished, is_answer
from actors.ingress.replying import call_id
from actors.ingress.running import Running
from actors.ingress.text import Decoder
from actors.messages import Finished, PromptScore, TokenLogprobs
from actors.replies.parts import CallBegins, Part, PartReader, PlainReader, TextPart
from actors.replies.reasoning import ReasoningReader


class Choice:
    """One reply. `prompt`: which of the request's prompts it answers. `parts` are all that came, in order; `opened` is
    for whoever tells a client about it."""

    def __init__(
        self,
        index: int,
        running: Running,
        decoder: Decoder,
        reader: PartReader | None = None,
        *,
        prompt: int = 0,
        tell: Tell | None = None,
    ) -> None:
        """`tell`: what its parts carry of their tokens' log probabilities."""
        self.index = index
        self.prompt = prompt
        self.running = running
        self.parts: list[Part] = []
        self.end: Finished | None = None
        self.ids: list[int] = []
        """Of all its tokens, those that have no text included."""
        self.logprobs: list[tuple[int, TokenLogprobs]] = []
        """Of its tokens, with their ids, where they were asked for."""
        self.fresh_logprobs: list[tuple[int, TokenLogprobs]] = []
        """Those of the batch that was read last."""
        self.scores: list[PromptScore] = []
        """Of its prompt, where they were asked for."""
        self.opened = False
        self._decoder = decoder
        self._reader = reader or PlainReader()
        traced = tell is not None or isinstance(self._reader, ReasoningReader)
        self._traced = TracedReader(decoder, self._reader, tell) if traced else None

    def read(self, batch: Batch) -> list[Part]:
        """What a batch adds to the reply."""
        known = batch.ids[len(batch.ids) - len(batch.logprobs) :]
        self.fresh_logprobs = list(zip(known, batch.logprobs, strict=True))
        self.logprobs += self.fresh_logprobs
        self.scores += batch.scores
        self.ids += batch.ids
        if batch.end is not None:
            self.end = batch.end
        fresh = self._read(batch) if self._traced is None else self._trace(batch, self._traced)
        fresh = [self._named(part) if isinstance(part, CallBegins) else part for part in fresh]
        self.parts += fresh
        return fresh

    def _read(self, batch: Batch) -> list[Part]:
        text = self._decoder.push(batch.ids) if batch.ids else ""
        if batch.end is not None:
            text += self._decoder.finish(batch.end.matched)
        fresh = self._reader.push(text)
        return fresh if batch.end is None else fresh + self._reader.finish()

    def _trace(self, batch: Batch, traced: TracedReader) -> list[Part]:
        fresh = traced.push(batch.ids, batch.logprobs)
        return fresh if batch.end is None else fresh + traced.finish(batch.end.matched)

    @property
    def reasoning_tokens(self) -> int | None:
        """How many of its tokens are told as reasoning; None: it is of no model that reasons."""
        return self._traced.reasoning_tokens if isinstance(self._reader, ReasoningReader) and self._traced else None

    def _named(self, part: CallBegins) -> CallBegins:
        return replace(part, call_id=call_id(self.running.call.submit, part.number))

    def numbers(self, tokens: int) -> int:
        """How many log probabilities are told of so many tokens."""
        sampling = self.running.call.submit.sampling
        return tokens * (1 + (sampling.logprobs or 0) + len(sampling.logprob_ids))

    @property
    def failure(self) -> ApiError | None:
        """The error that its end amounts to, if it does."""
        if self.end is None or is_answer(self.end):
            return None
        error = from_finished(self.end, self.text, self.running.delivered)
        error.prompt = self.prompt
        return error

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> bool:
        """Whether it calls tools."""
        return any(isinstance(part, CallBegins) for part in self.parts)

    @property
    def extras(self) -> dict[str, Any]:
        """Fields of our own in an answer: `session` for turns, `replayed` for stored answers (rule T2)."""
        end, use = self.end, self.running.call.session
        if end is None:
            return {}
        extras: dict[str, Any] = {"replayed": True} if end.replayed else {}
        if use is not None:
            extras["session"] = {"id": use.session_id, "turn": end.turn, "worker": self.running.worker_id}
        return extras


class News:
    """What comes of several choices, as it comes. `stop` it in a `finally`."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        self._open = list(choices)
        self._takes: dict[asyncio.Task[Batch], Choice] = {}

    @property
    def over(self) -> bool:
        return not self._open

    async def next(self, *, hold_s: float = 0.0, timeout_s: float | None = None) -> list[tuple[Choice, Batch]]:
        """Batches of one or several choices; none after `timeout_s` without any. `hold_s`: how long the tokens of a
        choice that has begun may gather. Raises ApiError as `Running.take` does.

        While the caller is busy with what it got, no choice is asked for more: what it makes waits in its line, where
        it is counted (rule A8).
        """
        if len(self._open) == 1 and not self._takes:
            choice = self._open[0]
            batch = await choice.running.take(hold_s=hold_s if choice.running.delivered else 0.0, timeout_s=timeout_s)
            return self._seen([(choice, batch)])
        asked = set(self._takes.values())
        for choice in self._open:
            if choice not in asked:
                take = choice.running.take(hold_s=hold_s if choice.running.delivered else 0.0)
                self._takes[asyncio.create_task(take)] = choice
        done, _ = await asyncio.wait(self._takes, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return self._seen([(self._takes.pop(task), task.result()) for task in done])

    async def stop(self) -> None:
        for task in self._takes:
            task.cancel()
        await asyncio.gather(*self._takes, return_exceptions=True)

    def _seen(self, batches: list[tuple[Choice, Batch]]) -> list[tuple[Choice, Batch]]:
        for choice, batch in batches:
            if batch.end is not None:
                self._open.remove(choice)
        told = [(choice, batch) for choice, batch in batches if batch.ids or batch.end is not None]
        return sorted(told, key=lambda one: one[0].index)


async def whole(choices: Sequence[Choice]) -> None:
    """Until every choice has ended, or one has failed and with it all. Nobody sees the pieces, so they are taken in
    large ones. Raises ApiError."""
    news = News(choices)
    try:
        while not news.over:
            for choice, batch in await news.next(hold_s=0.25):
                choice.read(batch)
                if batch.end is not None and not is_answer(batch.end):
                    return
    finally:
        await news.stop()
