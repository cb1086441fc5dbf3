"""What POST /generate answers: SGLang's objects, one for each reply. Pure.

A stream's texts are cumulative, as SGLang's are: every event repeats what came before it. Where that is not wanted,
`ingress.incremental_streaming_output` has each event tell what is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from actors.ingress.choices import Choice
from actors.ingress.errors import ApiError, is_answer
from actors.ingress.logprobs import TokenBytes, Told, finite, text_of
from actors.ingress.openai_answers import DONE, KEEP_ALIVE, event
from actors.messages import Finished, Outcome
from actors.replies.parts import Part, TextPart

UNKNOWN_WEIGHTS = "default"
"""What SGLang says where nobody has named the weights."""
ABORTED = "Aborted"

Json = dict[str, Any]


class NativeVoice:
    """`names`: of the replies, in order. `listed`: the answer is a list, as for batches. `logprobs`: they are told;
    `token_bytes`: and the texts of their tokens."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        listed: bool,
        incremental: bool = False,
        logprobs: bool = False,
        token_bytes: TokenBytes | None = None,
    ) -> None:
        self._names = names
        self._listed = listed
        self._incremental = incremental
        self._logprobs = logprobs
        self._told: dict[int, Choice] = {}
        """Replies that something was said of."""
        self._texts = [""] * len(names)
        """What the next event of each reply tells."""
        self._counted = [0] * len(names)
        """How many ids of each reply need not be told again."""
        self._scores = [Scores(token_bytes) for _ in names]
        self._prompt_told: list[Json | None] = [None] * len(names)
        """What was told of each prompt: by the first event of a stream, and again by its last, as in a whole answer."""

    def opens(self, choice: Choice) -> bytes:
        self._told[choice.index] = choice
        return b""

    def says(self, choice: Choice, parts: Sequence[Part]) -> bytes:
        """Nothing for the last of a reply: its end, or its failure, tells that as well, in one event."""
        self._texts[choice.index] += "".join(part.text for part in parts if isinstance(part, TextPart))
        if choice.end is not None and (is_answer(choice.end) or not self._listed):
            return b""
        return self._event(choice)

    def ends(self, choice: Choice) -> bytes:
        return self._event(choice)

    def closes(self, choices: Sequence[Choice]) -> bytes:
        return DONE

    def fails(self, error: ApiError, request_id: str) -> bytes:
        """The one error body; for a single reply also what was made of it, where SGLang's clients look for it."""
        body: Json = dict(error.body(request_id))
        if len(self._names) == 1 and (choice := self._told.get(0)) is not None:
            reason = {"type": "abort", "message": error.message, "status_code": error.status, "err_type": error.code}
            body |= self._object(choice, self._texts[0], choice.ids[self._counted[0] :], self._meta(choice, reason))
        return event(body, "error") + DONE

    def waits(self) -> bytes:
        return KEEP_ALIVE

    def whole(self, choices: Sequence[Choice]) -> bytes:
        told = [self._object(choice, choice.text, choice.ids, self._finished(choice)) for choice in choices]
        return orjson.dumps(told if self._listed else told[0])

    def _event(self, choice: Choice) -> bytes:
        at = choice.index
        over = choice.end is not None and is_answer(choice.end)
        meta = self._finished(choice) if over else self._meta(choice, None)
        told = self._object(choice, self._texts[at], choice.ids[self._counted[at] :], meta)
        if self._incremental:
            self._texts[at], self._counted[at] = "", len(choice.ids)
            self._scores[at].forget()
        if self._listed:
            told["index"] = at
        return event(told)

    def _object(self, choice: Choice, text: str, ids: Sequence[int], meta: Json) -> Json:
        return {"text": text, "output_ids": list(ids), "meta_info": meta}

    def _finished(self, choice: Choice) -> Json:
        end = choice.end
        assert end is not None, "asked for the end of a reply that goes on"
        meta = self._meta(choice, finish_reason(end, choice.ids))
        meta["e2e_latency"] = round(choice.running.elapsed_s(), 6)
        return {**meta, **choice.extras}

    def _meta(self, choice: Choice, reason: Json | None) -> Json:
        """Of a reply that goes on: the prompt of a turn is known to its worker only, and so is what was cached."""
        end, submit = choice.end, choice.running.call.submit
        known = len(submit.input_ids) if choice.running.call.session is None else None
        meta: Json = {
            "id": self._names[choice.index],
            "finish_reason": reason,
            "prompt_tokens": known if end is None else end.prompt_tokens,
            "completion_tokens": len(choice.ids) if end is None else end.completion_tokens,
            "cached_tokens": None if end is None else end.cached_tokens,
            "weight_version": choice.running.weights or UNKNOWN_WEIGHTS,
        }
        if self._logprobs:
            meta |= self._logprobs_of(choice)
        return meta

    def _logprobs_of(self, choice: Choice) -> Json:
        at = choice.index
        named = len(choice.running.call.submit.sampling.logprob_ids)
        reply = self._scores[at].of(choice.logprobs, named)
        if self._prompt_told[at] is None:
            self._prompt_told[at] = prompt = self._scores[at].of_prompt(choice.scores, named)
        elif self._incremental or choice.end is None:
            prompt = self._scores[at].of_prompt((), named)
        else:
            prompt = self._prompt_told[at] or {}
        return {**prompt, **reply}


class Scores:
    """The log probabilities of one reply and its prompt, as SGLang lists them: [log probability, token id, text or
    null]. A stream repeats a reply's in every event; each is written once."""

    def __init__(self, token_bytes: TokenBytes | None) -> None:
        self._token_bytes = token_bytes
        self._read = 0
        self._own: list[bytes] = []
        self._top: list[bytes] = []
        self._named: list[bytes] = []

    def of(self, told: Sequence[Told], named: int = 0) -> Json:
        """`told`: all of the reply's so far. `named`: how many tokens were asked for by their ids."""
        fresh = told[self._read :]
        self._read = len(told)
        self._own += map(orjson.dumps, self._own_of(fresh))
        self._top += map(orjson.dumps, self._beside(fresh, 0, named))
        lists = {"output_token_logprobs": _listed(self._own), "output_top_logprobs": _listed(self._top)}
        if not named:
            return lists
        self._named += map(orjson.dumps, self._beside(fresh, -named, 0))
        return {**lists, "output_token_ids_logprobs": _listed(self._named)}

    def of_prompt(self, told: Sequence[Told], named: int = 0) -> Json:
        """`told`: all of the prompt's. Its first token has no log probability."""
        lists: Json = {"input_token_logprobs": self._own_of(told), "input_top_logprobs": self._beside(told, 0, named)}
        if named:
            lists["input_token_ids_logprobs"] = self._beside(told, -named, 0)
        return {name: orjson.Fragment(orjson.dumps(each)) for name, each in lists.items()}

    def forget(self) -> None:
        """What was told so far need not be told again."""
        self._own, self._top, self._named = [], [], []

    def _own_of(self, told: Sequence[Told]) -> list[Any]:
        text = self._text
        return [[None if known is None else finite(known[0]), token, text(token)] for token, known in told]

    def _beside(self, told: Sequence[Told], begin: int, end: int) -> list[Any]:
        """The likeliest tokens, or those that were asked for, which stand behind them: from `begin` on, up to `end`
        before the last."""
        text = self._text
        return [
            None
            if known is None
            else [[finite(value), other, text(other)] for other, value in known[1][begin : len(known[1]) - end]]
            for _, known in told
        ]

    def _text(self, token: int) -> str | None:
        return None if self._token_bytes is None else text_of(self._token_bytes(token))


def _listed(items: Sequence[bytes]) -> orjson.Fragment:
    return orjson.Fragment(b"[" + b",".join(items) + b"]")


class HealthVoice:
    """GET /health_generate: nothing but a status."""

    def opens(self, choice: Choice) -> bytes:
        return b""

    def says(self, choice: Choice, parts: Sequence[Part]) -> bytes:
        return b""

    def ends(self, choice: Choice) -> bytes:
        return b""

    def closes(self, choices: Sequence[Choice]) -> bytes:
        return b""

    def fails(self, error: ApiError, request_id: str) -> bytes:
        return b""

    def waits(self) -> bytes:
        return b""

    def whole(self, choices: Sequence[Choice]) -> bytes:
        return b""


def finish_reason(end: Finished, ids: Sequence[int]) -> Json:
    """Why a reply has ended. What is told as an error has a body of its own."""
    if end.outcome is Outcome.LENGTH:
        return {"type": "length", "length": end.completion_tokens}
    if end.outcome is Outcome.STOP:
        token = ids[-1] if ids else None
        return {"type": "stop", "matched": token if end.matched is None else end.matched}
    return {"type": "abort", "message": end.message or ABORTED, "status_code": None, "err_type": None}
