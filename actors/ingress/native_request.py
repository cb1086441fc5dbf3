"""The body of POST /generate, SGLang's own API → a `GenerationRequest`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from typing import Any

from actors.ingress.errors import Invalid
from actors.ingress.generation import (
    MAX_CHOICES,
    GenerationRequest,
    Settings,
    check_model,
    digest_of,
    read_generation,
)
from actors.ingress.native_fields import (
    check_supported,
    read_names,
    read_native_session,
    read_prompts,
    read_scoring,
    same_for_all,
)
from actors.ingress.native_sampling import MAX_NEW_TOKENS, SETTINGS, PromptSettings, read_settings
from actors.ingress.routing import SessionUse
from actors.ingress.text import TextModel
from actors.ingress.validate import Fields, wrong_type
from configs import RemoraConfig

SHARED = (
    "rid",
    "stream",
    "user",
    "priority",
    "cache_salt",
    "prompt_cache_key",
    "waiting_timeout_s",
    "running_timeout_s",
    "deadline_s",
    "on_duplicate",
    "on_worker_lost",
)
"""Fields that mean what they mean on our other routes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRequest(GenerationRequest):
    """`listed`: the answer is a list, also of one. `logprob_texts`: log probabilities come with their tokens' texts."""

    listed: bool
    logprob_texts: bool


def read_generate(
    tree: dict[str, Any], headers: Mapping[str, str], *, text: TextModel, config: RemoraConfig
) -> NativeRequest:
    """Raises Invalid naming the field. `headers` have lower-case names."""
    fields = Fields(tree)
    check_model(fields, text.name)
    check_supported(fields)
    session, renamed = read_native_session(fields, config)
    prompts, batch = read_prompts(fields, text.vocab_size, may_be_empty=session is not None)
    if session is not None and len(prompts) > 1:
        path = prompts[0].field.partition("[")[0]
        raise Invalid(path, "A turn of a session has one prompt.", code="unsupported_value")
    names = read_names(fields, len(prompts)) if batch else ()
    shared = {name: tree[name] for name in SHARED if name in tree and not (names and name == "rid")}
    if len(names) == 1:
        shared["rid"], names = names[0], ()
    shared["cache_salt"] = _cache_salt(fields, len(prompts))
    request = read_generation(shared, headers, prompts, text=text, config=config, id_prefix="gen-", session=session)
    request = replace(request, digest=digest_of(tree), names=names, named=request.named or bool(names), renamed=renamed)
    made = _with_settings(request, fields, text, batch=batch)
    return NativeRequest(
        **{one.name: getattr(made, one.name) for one in fields_of(made)},
        listed=batch or made.replies > 1,
        logprob_texts=fields.flag("return_text_in_logprobs"),
    )


def _with_settings(request: GenerationRequest, fields: Fields, text: TextModel, *, batch: bool) -> GenerationRequest:
    """What `sampling_params` ask for: of all prompts, or of each."""
    count = len(request.prompts)
    given = _each(fields, count, batch=batch)
    scoring = read_scoring(fields, count, text.vocab_size)
    if len(set(scoring)) > len(given):
        given = given * count
    read = [read_settings(one, request, text, told) for one, told in zip(given, scoring, strict=False)]
    first = read[0]
    for other in read[1:]:
        if other.choices != first.choices:
            raise Invalid(other.path("n"), "All prompts of a batch have equally many replies.")
    _check_replies(first, request.session, count)
    return replace(
        request,
        choices=first.choices,
        sampling=first.settings.sampling,
        own_seed=first.settings.own_seed,
        grammar=first.settings.grammar,
        decoding=first.settings.decoding,
        own=_own(read),
        max_tokens_field=first.path(MAX_NEW_TOKENS),
        grammar_field=first.grammar_field,
    )


def _each(fields: Fields, count: int, *, batch: bool) -> list[Fields | None]:
    """`sampling_params`: an object, or for a batch one for each prompt."""
    value = fields.raw(SETTINGS)
    if not isinstance(value, list):
        return [fields.child(SETTINGS)]
    if not batch or len(value) != count:
        message = f"`{SETTINGS}` has {len(value)} items; it must be an object, or have one for each prompt of a batch."
        raise Invalid(SETTINGS, message)
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise wrong_type(f"{SETTINGS}[{index}]", "an object", item)
    return [Fields(item, f"{SETTINGS}[{index}]") for index, item in enumerate(value)]


def _own(read: Sequence[PromptSettings]) -> tuple[Settings, ...]:
    return tuple(one.settings for one in read) if len(read) > 1 else ()


def _check_replies(first: PromptSettings, session: SessionUse | None, count: int) -> None:
    if session is not None and first.choices > 1:
        raise Invalid(first.path("n"), "A turn of a session has one reply.", code="unsupported_value")
    if first.choices * count > MAX_CHOICES:
        message = f"This asks for {first.choices * count} replies; at most {MAX_CHOICES} are given at once."
        raise Invalid(first.path("n"), message, code="integer_above_max_value")


def _cache_salt(fields: Fields, count: int) -> str:
    """`extra_key` and `cache_salt` both narrow who shares the prefix cache (rule K3)."""
    given = [same_for_all(fields, name, count, "text") for name in ("extra_key", "cache_salt")]
    return "\n".join(value for value in given if value)
