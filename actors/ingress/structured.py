"""Structured output: `response_format` as the OpenAI API has it, and the `guided_*` fields of vLLM beside it."""

from __future__ import annotations

from typing import Any

import orjson

from actors.ingress.errors import Invalid
from actors.ingress.validate import Fields, check_text, wrong_type
from actors.messages import Grammar, GrammarKind

MAX_GRAMMAR_BYTES = 256 * 2**10
MAX_CHOICES = 1024
_FORMAT = "response_format"
_FIELDS = (_FORMAT, "guided_json", "guided_regex", "guided_choice", "guided_grammar")


def read_grammar(fields: Fields) -> tuple[Grammar | None, str]:
    """(what the output must conform to, the field that says so). Raises Invalid naming the field."""
    given = [(grammar, name) for name in _FIELDS if (grammar := _read(fields, name)) is not None]
    if len(given) > 1:
        raise Invalid(given[1][1], f"`{given[0][1]}` and `{given[1][1]}` cannot be combined.")
    if not given:
        return None, ""
    grammar, name = given[0]
    return _of_size(grammar, name), name


def schema_grammar(value: Any, path: str, *, as_text: bool = False) -> Grammar:
    """Of a JSON schema that stands at `path`; `as_text`: perhaps as a string. Raises Invalid naming it."""
    return _of_size(_schema(value, path, as_text=as_text), path)


def text_grammar(fields: Fields, name: str, kind: GrammarKind) -> Grammar:
    """Of a field that holds the grammar's text. Raises Invalid naming it."""
    text, path = fields.text(name), fields.at(name)
    if not text:
        raise Invalid(path, f"`{path}` must not be empty.", code="empty_string")
    return _of_size(Grammar(kind=kind, text=text), path)


def _of_size(grammar: Grammar, path: str) -> Grammar:
    size = len(grammar.text.encode())
    if size > MAX_GRAMMAR_BYTES:
        text = f"`{path}` is {size} bytes long; at most {MAX_GRAMMAR_BYTES} are allowed."
        raise Invalid(path, text, code="string_above_max_length")
    return grammar


def _read(fields: Fields, name: str) -> Grammar | None:
    if fields.raw(name) is None:
        return None
    if name == _FORMAT:
        return _format(fields)
    if name == "guided_json":
        return _schema(fields.raw(name), name, as_text=True)
    if name == "guided_choice":
        return _choice(fields)
    return text_grammar(fields, name, GrammarKind.REGEX if name == "guided_regex" else GrammarKind.EBNF)


def _format(fields: Fields) -> Grammar | None:
    wanted = fields.child(_FORMAT)
    if wanted is None:
        return None
    kind = wanted.text("type")
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return Grammar(kind=GrammarKind.JSON_OBJECT)
    if kind != "json_schema":
        at = f"{_FORMAT}.type"
        raise Invalid(at, f"`{at}` must be one of 'text', 'json_object', 'json_schema'.", code="unsupported_value")
    body = wanted.child("json_schema")
    if body is None:
        at = f"{_FORMAT}.json_schema"
        raise Invalid(at, f"`{at}` is missing.", code="missing_required_parameter")
    body.text("name", max_bytes=256)
    body.flag("strict")  # Always as if it were true: what cannot be enforced is refused.
    at = body.at("schema")
    if body.raw("schema") is None:
        raise Invalid(at, f"`{at}` is missing.", code="missing_required_parameter")
    return _schema(body.raw("schema"), at)


def _schema(value: Any, path: str, *, as_text: bool = False) -> Grammar:
    if isinstance(value, str) and as_text:
        value = _parsed(value, path)
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    try:
        # Not sorted: an object's properties come in the order in which the schema names them.
        return Grammar(kind=GrammarKind.JSON_SCHEMA, text=orjson.dumps(value).decode())
    except orjson.JSONEncodeError:
        raise Invalid(path, f"`{path}` is nested too deeply.") from None


def _parsed(text: str, path: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise Invalid(path, f"`{path}` is not valid JSON.", code="invalid_json") from None


def _choice(fields: Fields) -> Grammar:
    name = "guided_choice"
    choices = [check_text(item, f"{name}[{n}]") for n, item in enumerate(fields.items(name, most=MAX_CHOICES) or [])]
    if not choices or not all(choices):
        raise Invalid(name, f"`{name}` must name texts to choose from, none of them empty.")
    return Grammar(kind=GrammarKind.CHOICE, text=orjson.dumps(choices).decode())
