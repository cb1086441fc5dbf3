"""The body of POST /v1/completions → a `GenerationRequest`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from actors.ingress.errors import Invalid
from actors.ingress.generation import MAX_CHOICES, GenerationRequest, check_model, read_generation, read_session_use
from actors.ingress.logprobs import with_completion_logprobs
from actors.ingress.prompts import IdsPrompt, PromptSource, TextPrompt
from actors.ingress.text import TextModel
from actors.ingress.validate import Fields, check_integer, check_text, wrong_type
from configs import RemoraConfig

DEFAULT_MAX_TOKENS = 16
"""The OpenAI API's, for this route only."""
_NOT_HERE = ("messages", "tools")


def read_completion(
    tree: dict[str, Any], headers: Mapping[str, str], *, text: TextModel, config: RemoraConfig
) -> GenerationRequest:
    """Raises Invalid naming the field. `headers` have lower-case names."""
    fields = Fields(tree)
    check_model(fields, text.name)
    prompts = read_prompts(fields, text.vocab_size)
    _refuse_unsupported(fields)
    request = read_generation(
        tree, headers, prompts, text=text, config=config, id_prefix="cmpl-", session=read_session_use(fields, config)
    )
    sampling = request.sampling
    if fields.raw(request.max_tokens_field) is None:
        sampling = replace(sampling, max_tokens=DEFAULT_MAX_TOKENS)
    return with_completion_logprobs(replace(request, sampling=sampling, echo=fields.flag("echo")), fields)


def read_prompts(fields: Fields, vocab_size: int, name: str = "prompt") -> Sequence[PromptSource]:
    """A text, a list of texts, a list of token ids, or a list of such lists. Raises Invalid naming the item."""
    value = fields.raw(name)
    if value is None:
        for other in _NOT_HERE:
            if fields.has(other):
                raise Invalid(name, f"`{name}` is missing; `{other}` belong to /v1/chat/completions.")
        raise Invalid(name, f"`{name}` is missing.", code="missing_required_parameter")
    if isinstance(value, str):
        return (TextPrompt(check_text(value, name), name),)
    if not isinstance(value, list):
        raise wrong_type(name, "a string or an array", value)
    if not value:
        raise Invalid(name, f"`{name}` must not be empty.", code="empty_array")
    if isinstance(value[0], int) and not isinstance(value[0], bool):
        return (IdsPrompt(ids_of(value, name, vocab_size), name),)
    if len(value) > MAX_CHOICES:
        raise Invalid(name, f"`{name}` has {len(value)} prompts; at most {MAX_CHOICES} are taken at once.")
    return tuple(_one(item, f"{name}[{number}]", vocab_size) for number, item in enumerate(value))


def _one(value: Any, path: str, vocab_size: int) -> PromptSource:
    if isinstance(value, str):
        return TextPrompt(check_text(value, path), path)
    if isinstance(value, list) and value:
        return IdsPrompt(ids_of(value, path, vocab_size), path)
    raise wrong_type(path, "a string or an array of token ids", value)


def ids_of(items: list[Any], path: str, vocab_size: int) -> tuple[int, ...]:
    """Token ids. Raises Invalid naming the one that is none."""
    return tuple(check_integer(item, f"{path}[{n}]", least=0, most=vocab_size - 1) for n, item in enumerate(items))


def echoes(request: GenerationRequest, text: TextModel) -> Sequence[str]:
    """What each reply begins with where `echo` is asked for: its prompt's text."""
    if not request.echo:
        return ()
    return [_text_of(request.prompts[index // request.choices], text) for index in range(request.replies)]


def _text_of(prompt: PromptSource, text: TextModel) -> str:
    if isinstance(prompt, TextPrompt):
        return prompt.text
    decoder = text.decoder(())
    return decoder.push(prompt.ids) + decoder.finish(None) if isinstance(prompt, IdsPrompt) else ""


def _refuse_unsupported(fields: Fields) -> None:
    """Known fields that this server cannot honour."""
    if fields.text("suffix"):
        raise Invalid("suffix", "`suffix` is not supported.", code="unsupported_value")
    best_of = fields.integer("best_of", least=1)
    if best_of is not None and best_of != (fields.integer("n", least=1) or 1):
        raise Invalid("best_of", "`best_of` must equal `n`: all replies are given.", code="unsupported_value")
