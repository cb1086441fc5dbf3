"""Sampling settings of an OpenAI body, and ours beside them (`top_k`, `min_p`, `repetition_penalty`, …)."""

from __future__ import annotations

from typing import Any

from actors.ingress.errors import Invalid
from actors.ingress.validate import Fields, check_integer, check_number, check_text, wrong_type
from actors.messages import SamplingParams, TokenIds

MAX_STOPS = 16
MAX_STOP_BYTES = 1024
MAX_BIASES = 1024
_INT64 = 2**63


def read_sampling(fields: Fields, *, vocab_size: int, max_context: int, own_seed: int) -> SamplingParams:
    """Raises Invalid naming the field. Defaults are the OpenAI API's: temperature 1, a seed of its own."""
    top_p = fields.number("top_p", 1.0, least=0.0, most=1.0)
    top_k = max(0, fields.integer("top_k", least=-1, most=2**31) or 0)
    if top_p == 0.0:
        top_p, top_k = 1.0, 1  # The smallest nucleus is the likeliest token.
    seed = fields.integer("seed", least=-_INT64, most=2 * _INT64)
    return SamplingParams(
        max_tokens=_max_tokens(fields, max_context),
        temperature=fields.number("temperature", 1.0, least=0.0, most=2.0),
        top_k=top_k,
        top_p=top_p,
        min_p=fields.number("min_p", 0.0, least=0.0, most=1.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0, least=0.01, most=100.0),
        presence_penalty=fields.number("presence_penalty", 0.0, least=-2.0, most=2.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0, least=-2.0, most=2.0),
        logit_bias=_logit_bias(fields, vocab_size),
        seed=(own_seed if seed is None else seed) & (_INT64 - 1),
        stop=_stop(fields),
        stop_token_ids=_stop_token_ids(fields, vocab_size),
        ignore_eos=fields.flag("ignore_eos"),
        min_tokens=fields.integer("min_tokens", least=0, most=max_context) or 0,
    )


def max_tokens_field(fields: Fields) -> str:
    """The name under which the client gave its limit."""
    newer = fields.raw("max_completion_tokens") is not None
    return fields.at("max_completion_tokens" if newer else "max_tokens")


def _max_tokens(fields: Fields, max_context: int) -> int | None:
    older = fields.integer("max_tokens", least=0)  # Checked even where the newer name wins.
    newer = fields.integer("max_completion_tokens", least=0)
    name, wanted = max_tokens_field(fields), older if newer is None else newer
    if wanted is not None and wanted > max_context:
        message = f"`{name}` is {wanted}, but the model's context is {max_context} tokens, prompt included."
        raise Invalid(name, message, code="context_length_exceeded")
    return wanted


def _logit_bias(fields: Fields, vocab_size: int) -> tuple[tuple[int, float], ...]:
    child = fields.child("logit_bias")
    if child is None:
        return ()
    tree: dict[str, Any] = fields.raw("logit_bias")
    path = fields.at("logit_bias")
    if len(tree) > MAX_BIASES:
        raise Invalid(path, f"`{path}` has more than {MAX_BIASES} entries.")
    return tuple(sorted((_token_key(key, path, vocab_size), _bias(value, path)) for key, value in tree.items()))


def _token_key(key: str, path: str, vocab_size: int) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 12 and int(key) < vocab_size):
        shown = key if len(key) <= 20 else key[:20] + "…"
        raise Invalid(path, f"`{path}` has the key {shown!r}: token ids are 0 to {vocab_size - 1}.")
    return int(key)


def _bias(value: Any, path: str) -> float:
    return check_number(value, path, least=-100.0, most=100.0)


def _stop(fields: Fields) -> tuple[str, ...]:
    value, path = fields.raw("stop"), fields.at("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        return (_stop_string(value, path),)
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of strings", value)
    if len(value) > MAX_STOPS:
        raise Invalid(path, f"`{path}` has {len(value)} items; at most {MAX_STOPS} are allowed.")
    return tuple(_stop_string(item, f"{path}[{index}]") for index, item in enumerate(value))


def _stop_string(value: Any, path: str) -> str:
    text = check_text(value, path, max_bytes=MAX_STOP_BYTES)
    if not text:
        raise Invalid(path, f"`{path}` must not be empty.", code="empty_string")
    return text


def _stop_token_ids(fields: Fields, vocab_size: int) -> TokenIds:
    items, path = fields.items("stop_token_ids", most=MAX_BIASES) or [], fields.at("stop_token_ids")
    return tuple(
        check_integer(item, f"{path}[{index}]", least=0, most=vocab_size - 1) for index, item in enumerate(items)
    )
