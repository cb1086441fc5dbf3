"""Tools that a reply may call: what every API asks of them, and what a chat says of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from actors.ingress.errors import Invalid
from actors.ingress.validate import Fields, check_text, wrong_type
from actors.replies.demand import ANY, Demand
from actors.replies.formats import ReplyFormat

MAX_TOOLS = 1024
MAX_TOOLS_BYTES = 2**20
MAX_DEPTH = 56
"""Nesting of a tool's parameters: templates are given no more than 64 levels in all."""
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_CHOICES = ("none", "auto", "required")


def read_tools(fields: Fields, replies: ReplyFormat) -> tuple[list[dict[str, Any]] | None, Demand]:
    """`tools`, `tool_choice` and `parallel_tool_calls` of a chat → (tools as templates take them, what is demanded).
    None: the reply is to call none. Raises Invalid naming the field."""
    given = [_tool(item, f"tools[{number}]") for number, item in enumerate(fields.items("tools", most=MAX_TOOLS) or ())]
    check_names(given, "function.name")
    parallel = fields.flag("parallel_tool_calls", True)
    choice, named = _choice(fields, [item["function"]["name"] for item in given])
    if not given or choice == "none":
        return None, ANY
    demand = Demand(required=choice == "required", named=named, parallel=parallel, field="parallel_tool_calls")
    return given, demand_of(given, demand, replies)


def check_names(tools: Sequence[Mapping[str, Any]], field: str) -> None:
    """`field`: where in a tool its name stands. Raises Invalid where two have the same."""
    known: set[str] = set()
    for number, tool in enumerate(tools):
        if tool["function"]["name"] in known:
            at = f"tools[{number}].{field}"
            raise Invalid(at, f"`{at}` is the name of an earlier tool, too.")
        known.add(tool["function"]["name"])


def demand_of(tools: Sequence[dict[str, Any]], choice: Demand, replies: ReplyFormat) -> Demand:
    """What is demanded where these tools may be called: the choice, and what they are `strict` about, which is taken
    out of them. `choice.field`: the one that allows a single call only. Raises Invalid naming the field."""
    _check_support(replies)
    if len(orjson.dumps(tools)) > MAX_TOOLS_BYTES:
        raise Invalid("tools", f"`tools` are longer than {MAX_TOOLS_BYTES} bytes.", code="string_above_max_length")
    strict = frozenset(tool["function"]["name"] for tool in tools if tool["function"].pop("strict", False))
    return replace(choice, strict=strict, field="tool_choice" if choice.forces else "tools" if strict else choice.field)


def read_function(fields: Fields, parameters: str = "parameters") -> dict[str, Any]:
    """A function as templates take it, `strict` beside. `parameters`: what this API calls their schema. Raises Invalid
    naming the field."""
    at = fields.at("name")
    name = fields.text("name", max_bytes=1024)
    if name is None:
        raise Invalid(at, f"`{at}` is missing.", code="missing_required_parameter")
    if not _NAME.fullmatch(name):
        raise Invalid(at, f"`{at}` must be 1 to 128 of the characters a-z A-Z 0-9 _ -.")
    function: dict[str, Any] = {"name": name}
    description = fields.text("description")
    if description is not None:
        function["description"] = description
    schema = fields.raw(parameters)
    if schema is not None:
        function["parameters"] = check_schema(schema, fields.at(parameters))
    if fields.flag("strict"):
        function["strict"] = True
    return {"type": "function", "function": function}


def check_schema(value: Any, path: str) -> dict[str, Any]:
    """The JSON schema of an object. Only what this server relies on is looked at. Raises Invalid naming the field."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    if value.get("type", "object") != "object":
        raise Invalid(f"{path}.type", f"`{path}.type` must be 'object': arguments have names.")
    properties = value.get("properties")
    if properties is not None and not isinstance(properties, dict):
        raise wrong_type(f"{path}.properties", "an object", properties)
    required = value.get("required")
    if required is not None and not (isinstance(required, list) and all(isinstance(item, str) for item in required)):
        raise Invalid(f"{path}.required", f"`{path}.required` must be an array of strings.", code="invalid_type")
    if not _within(value, MAX_DEPTH):
        raise Invalid(path, f"`{path}` is nested deeper than {MAX_DEPTH} levels.")
    return value


def _within(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(_within(item, depth - 1) for item in inner)


def _tool(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    fields = Fields(value, path)
    kind = fields.text("type", max_bytes=256)
    at = fields.at("type")
    if kind is None:
        raise Invalid(at, f"`{at}` is missing.", code="missing_required_parameter")
    if kind != "function":
        raise Invalid(at, f"`{at}` must be 'function': there are no other tools here.", code="unsupported_value")
    function = fields.child("function")
    if function is None:
        at = fields.at("function")
        raise Invalid(at, f"`{at}` is missing.", code="missing_required_parameter")
    return read_function(function)


def word_of_choice(value: str | None, names: list[str]) -> str:
    """A `tool_choice` that names no tool. Raises Invalid."""
    if value is None:
        return "auto"
    if value not in _CHOICES:
        known = ", ".join(map(repr, _CHOICES))
        raise Invalid("tool_choice", f"`tool_choice` must be one of {known}, or name a function.")
    if value == "required" and not names:
        raise Invalid("tool_choice", "`tool_choice` is 'required', but there are no `tools`.")
    return value


def _choice(fields: Fields, names: list[str]) -> tuple[str, str]:
    """(`none`, `auto` or `required`; the tool that has to be called)."""
    value, at = fields.raw("tool_choice"), "tool_choice"
    if value is None or isinstance(value, str):
        return word_of_choice(value, names), ""
    if not isinstance(value, dict):
        raise wrong_type(at, "a string or an object", value)
    return "auto", _named(value, names)


def _named(value: Mapping[str, Any], names: list[str]) -> str:
    kind = check_text(value.get("type"), "tool_choice.type", max_bytes=256)
    if kind != "function":
        text = "`tool_choice.type` must be 'function'."
        raise Invalid("tool_choice.type", text, code="unsupported_value")
    function = value.get("function")
    if not isinstance(function, dict):
        raise wrong_type("tool_choice.function", "an object", function)
    name = check_text(function.get("name"), "tool_choice.function.name", max_bytes=1024)
    if name not in names:
        raise Invalid("tool_choice.function.name", "`tool_choice.function.name` is not the name of one of the `tools`.")
    return name


def _check_support(replies: ReplyFormat) -> None:
    """Raises Invalid for a model that cannot be given tools."""
    if not replies.takes_tools:
        text = (
            "This model's chat template has no place for tools; `tool_choice` 'none' sends the messages without them."
        )
        raise Invalid("tools", text, code="unsupported_value")
    if replies.tools is None:
        text = "It is not known how this model writes calls of tools; the server's `model.tool_format` can say so."
        raise Invalid("tools", text, code="unsupported_value")
