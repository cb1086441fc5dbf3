"""Arguments between tags, as grammar rules. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.replies.notation import CannotHold, in_slashes, json_rule, quoted

_ENDS = "\n</parameter>\n"
_UNENFORCED = ("pattern", "format", "minLength", "maxLength")


def xml_parameters(schema: Mapping[str, Any], number: int, *, strict: bool) -> tuple[str, list[tuple[str, str]]]:
    """(an expression for all arguments of the tool `number`, the rules that it uses). Arguments come in the order in
    which the schema names them. Raises CannotHold for what `strict` asks and tags cannot give."""
    properties = schema.get("properties") or {}
    required = set(schema.get("required") or ())
    pieces: list[str] = []
    rules: list[tuple[str, str]] = [("text_value[lazy]", f"/(?s:.*){in_slashes(_ENDS)}/")]
    for index, (key, inner) in enumerate(properties.items()):
        if any(character in key for character in "<>\n"):
            raise CannotHold(f"this model's tool calls cannot hold an argument of the name {key!r}")
        rule = f"value_{number}_{index}"
        body = _value(inner if isinstance(inner, Mapping) else {}, schema, key, strict=strict)
        rules.append((rule, body))
        piece = f"{quoted(f'<parameter={key}>{chr(10)}')} {rule}"
        pieces.append(piece if key in required else f"({piece})?")
    return " ".join(pieces) or '""', rules


def _value(schema: Mapping[str, Any], root: Mapping[str, Any], key: str, *, strict: bool) -> str:
    """A value and the tag that ends it. Strings have no quotes here."""
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if choices and all(isinstance(choice, str) for choice in choices):
        return " | ".join(quoted(f"{choice}{_ENDS}") for choice in choices)
    if schema.get("type") == "string":
        if strict and any(name in schema for name in _UNENFORCED):
            raise CannotHold(f"`strict` cannot be kept for the text {key!r}: this model writes it without quotes")
        return "text_value"
    definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
    return f"{json_rule({**definitions, **schema}, lenient=not strict)} {quoted(_ENDS)}"
