"""Log probabilities as the OpenAI routes ask for them and tell them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from actors.ingress.errors import Invalid
from actors.ingress.generation import GenerationRequest
from actors.ingress.validate import Fields
from actors.messages import TokenLogprobs

MAX_TOP = 20
LEAST = -9999.0
"""What is told of a token that cannot come: JSON knows no infinity."""

Told = tuple[int, TokenLogprobs]
"""A token's id, and its log probabilities."""
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
    if wanted is not None and fields.flag("echo"):
        message = "`logprobs` of an echoed prompt are not known; ask for one of the two."
        raise Invalid("logprobs", message, code="unsupported_value")
    return _with(request, wanted)


def _with(request: GenerationRequest, count: int | None) -> GenerationRequest:
    return request if count is None else replace(request, sampling=replace(request.sampling, logprobs=count))


def chat_logprobs(told: Sequence[Told], token_bytes: TokenBytes) -> dict[str, Any]:
    """The `logprobs` of a chat choice, or of a chunk."""
    return {
        "content": [_entry(token_id, probabilities, token_bytes) for token_id, probabilities in told],
        "refusal": None,
    }


def completion_logprobs(told: Sequence[Told], token_bytes: TokenBytes, offset: int) -> dict[str, Any]:
    """The `logprobs` of a completion, or of a chunk of it. `offset`: characters of the text before."""
    texts = [text_of(token_bytes(token_id)) for token_id, _ in told]
    offsets = list(accumulate(map(len, texts), initial=offset))[: len(texts)]
    return {
        "tokens": texts,
        "token_logprobs": [finite(own) for _, (own, _) in told],
        "top_logprobs": [{text_of(token_bytes(token)): finite(value) for token, value in top} for _, (_, top) in told],
        "text_offset": offsets,
    }


def _entry(token_id: int, probabilities: TokenLogprobs, token_bytes: TokenBytes) -> dict[str, Any]:
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
