"""Log probabilities as the OpenAI routes ask for them and tell them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from actors.ingress.errors import Invalid
from actors.ingress.generation import GenerationRequest
from actors.ingress.validate import Fields
from actors.messages import PromptScore, TokenLogprobs

PROMPT_FIELD = "logprob_start_len"
"""What workers complain about."""
MAX_TOP = 20
LEAST = -9999.0
"""What is told of a token that cannot come: JSON knows no infinity."""

Told = PromptScore
"""A token's id, and its log probabilities; of a prompt's first token there are none."""
TokenBytes = Callable[[int], bytes]
"""The bytes of a token as it is spelled, control tokens included."""


def with_chat_logprobs(request: GenerationRequest, fields: Fields) -> GenerationRequest:
    """`logprobs` and `top_logprobs` of a chat body. Raises Invalid naming the field."""
    wanted, top = fields.flag("logprobs"), fields.integer("top_logprobs", least=0, most=MAX_TOP)
    if top is not None and not wanted:
        raise Invalid("top_logprobs", "`top_logprobs` needs `logprobs` to be true.")
    return _with(request, (top or 0) if wanted else None)


def with_completion_logprobs(request: GenerationRequest, fields: Fields) -> GenerationRequest:
    """`logprobs` of a completion's body: a number. Raises Invalid naming the field."""
    wanted = fields.integer("logprobs", least=0, most=MAX_TOP)
    request = _with(request, wanted)
    if wanted is None or not request.echo:
        return request
    if request.session is not None:
        message = "`logprobs` of an echoed prompt are not told in a session: it is a part of the prompt only."
        raise Invalid("logprobs", message, code="unsupported_value")
    sampling = replace(request.sampling, prompt_logprobs_from=0)
    return replace(request, sampling=sampling, renamed={**request.renamed, PROMPT_FIELD: "logprobs"})


def _with(request: GenerationRequest, count: int | None) -> GenerationRequest:
    return request if count is None else replace(request, sampling=replace(request.sampling, logprobs=count))


def chat_logprobs(told: Sequence[Told], token_bytes: TokenBytes) -> dict[str, Any]:
    """The `logprobs` of a chat choice, or of a chunk."""
    content = [entry(token_id, known, token_bytes) for token_id, known in told if known is not None]
    return {"content": content, "refusal": None}


def completion_logprobs(told: Sequence[Told], token_bytes: TokenBytes, offset: int) -> dict[str, Any]:
    """The `logprobs` of a completion, or of a chunk of it. `offset`: characters of the text before. null for a prompt's
    first token."""
    texts = [text_of(token_bytes(token_id)) for token_id, _ in told]
    offsets = list(accumulate(map(len, texts), initial=offset))[: len(texts)]
    return {
        "tokens": texts,
        "token_logprobs": [None if known is None else finite(known[0]) for _, known in told],
        "top_logprobs": [None if known is None else _top(known, token_bytes) for _, known in told],
        "text_offset": offsets,
    }


def _top(known: TokenLogprobs, token_bytes: TokenBytes) -> dict[str, float]:
    return {text_of(token_bytes(token)): finite(value) for token, value in known[1]}


def entry(token_id: int, probabilities: TokenLogprobs, token_bytes: TokenBytes) -> dict[str, Any]:
    """A token of a reply as the OpenAI API tells it."""
    own, top = probabilities
    alternatives = [_one(token, value, token_bytes) for token, value in top]
    return {**_one(token_id, own, token_bytes), "top_logprobs": alternatives}


def _one(token_id: int, logprob: float, token_bytes: TokenBytes) -> dict[str, Any]:
    data = token_bytes(token_id)
    return {"token": text_of(data), "logprob": finite(logprob), "bytes": list(data)}


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def finite(value: float) -> float:
    return value if value > LEAST else LEAST
