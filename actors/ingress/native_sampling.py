"""`sampling_params` of SGLang's own API. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from actors.ingress.decoding import Decoding
from actors.ingress.errors import Invalid
from actors.ingress.generation import GenerationRequest, Settings, own_seed
from actors.ingress.native_fields import Scoring
from actors.ingress.sampling import read_sampling
from actors.ingress.structured import schema_grammar, text_grammar
from actors.ingress.text import TextModel
from actors.ingress.validate import Fields, RenamedFields
from actors.messages import Grammar, GrammarKind

SETTINGS = "sampling_params"
MAX_NEW_TOKENS = "max_new_tokens"
DEFAULT_MAX_NEW_TOKENS = 128
"""SGLang's. An explicit null is as many as the context allows."""
ANY_JSON = "$$ANY$$"
"""A `json_schema` that every JSON value meets."""
NAMES = {
    "max_tokens": MAX_NEW_TOKENS,
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "logit_bias": "logit_bias",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
}
"""SGLang's names by ours."""
REFUSED = ("stop_regex", "structural_tag")


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """What one `sampling_params` object asks for, and where it stands."""

    settings: Settings
    choices: int
    grammar_field: str
    where: str

    def path(self, name: str) -> str:
        return f"{self.where}.{name}"


def read_settings(
    given: Fields | None, request: GenerationRequest, text: TextModel, scoring: Scoring
) -> PromptSettings:
    """`given` None: all as usual. `request`: for its own seed. Raises Invalid naming the field."""
    fields = given or Fields({}, SETTINGS)
    _check_supported(fields)
    named = RenamedFields(fields.tree, fields.path, NAMES)
    sampling = read_sampling(
        named,
        vocab_size=text.vocab_size,
        max_context=text.max_context,
        own_seed=own_seed(request.rid, request.digest),
    )
    if not fields.has(MAX_NEW_TOKENS):
        sampling = replace(sampling, max_tokens=DEFAULT_MAX_NEW_TOKENS)
    grammar, grammar_field = _read_grammar(fields)
    decoding = Decoding(controls=not fields.flag("skip_special_tokens", True), keeps_stop=fields.flag("no_stop_trim"))
    renamed = {"max_tokens": fields.at(MAX_NEW_TOKENS), "grammar": grammar_field}
    return PromptSettings(
        Settings(scoring.told_by(sampling), named.raw("seed") is None, grammar, decoding, renamed),
        fields.integer("n", least=1) or 1,
        grammar_field,
        fields.path,
    )


def _read_grammar(fields: Fields) -> tuple[Grammar | None, str]:
    found: list[tuple[Grammar, str]] = []
    schema = fields.raw("json_schema")
    if schema == ANY_JSON:
        found.append((Grammar(kind=GrammarKind.JSON_OBJECT), "json_schema"))
    elif schema is not None:
        found.append((schema_grammar(schema, fields.at("json_schema"), as_text=True), "json_schema"))
    for name, kind in (("regex", GrammarKind.REGEX), ("ebnf", GrammarKind.EBNF)):
        if fields.raw(name) is not None:
            found.append((text_grammar(fields, name, kind), name))
    if len(found) > 1:
        message = f"`{fields.at(found[0][1])}` and `{fields.at(found[1][1])}` cannot be combined."
        raise Invalid(fields.at(found[1][1]), message)
    return (found[0][0], fields.at(found[0][1])) if found else (None, "")


def _check_supported(fields: Fields) -> None:
    for name in REFUSED:
        if fields.raw(name):
            raise _unsupported(fields, name)
    if (fields.integer("beam_width", least=1) or 1) > 1:
        raise _unsupported(fields, "beam_width")
    if not fields.flag("spaces_between_special_tokens", True):
        raise _unsupported(fields, "spaces_between_special_tokens")


def _unsupported(fields: Fields, name: str) -> Invalid:
    return Invalid(fields.at(name), f"`{fields.at(name)}` is not supported.", code="unsupported_value")
