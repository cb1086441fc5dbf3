"""`tools` and `tool_choice` as Anthropic's API has them → what is common to all APIs. Pure."""

from __future__ import annotations

from typing import Any

from actors.ingress.errors import Invalid
from actors.ingress.tools import MAX_TOOLS, check_names, demand_of, read_function
from actors.ingress.validate import Fields, wrong_type
from actors.replies.demand import ANY, Demand
from actors.replies.formats import ReplyFormat

_CHOICES = ("auto", "any", "tool", "none")


def read_tools(fields: Fields, replies: ReplyFormat) -> tuple[list[dict[str, Any]] | None, Demand]:
    """(tools as templates take them, what is demanded of calls). None: the reply is to call none. Raises Invalid naming
    the field."""
    tools = [_tool(item, f"tools[{number}]") for number, item in enumerate(fields.items("tools", most=MAX_TOOLS) or ())]
    check_names(tools, "name")
    kind, choice = _choice(fields, [tool["function"]["name"] for tool in tools])
    if not tools or kind == "none":
        return None, ANY
    return tools, demand_of(tools, choice, replies)


def _tool(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    fields = Fields(value, path)
    kind = fields.text("type", max_bytes=256)
    if kind not in (None, "custom"):
        at = fields.at("type")
        raise Invalid(at, f"`{at}` is '{kind[:64]}': no tools are run by this server.", code="unsupported_value")
    if fields.raw("input_schema") is None:
        at = fields.at("input_schema")
        raise Invalid(at, f"`{at}` is missing.", code="missing_required_parameter")
    return read_function(fields, "input_schema")


def _choice(fields: Fields, names: list[str]) -> tuple[str, Demand]:
    """(its type, what it demands)."""
    choice = fields.child("tool_choice")
    if choice is None:
        return "auto", ANY
    kind, at = choice.text("type", max_bytes=256), choice.at("type")
    if kind not in _CHOICES:
        raise Invalid(at, f"`{at}` must be one of {', '.join(map(repr, _CHOICES))}.", code="unsupported_value")
    if kind == "any" and not names:
        raise Invalid(at, f"`{at}` is 'any', but there are no `tools`.")
    single = choice.flag("disable_parallel_tool_use")
    named = _named(choice, names) if kind == "tool" else ""
    return kind, Demand(
        required=kind == "any", named=named, parallel=not single, field=choice.at("disable_parallel_tool_use")
    )


def _named(choice: Fields, names: list[str]) -> str:
    name, at = choice.text("name", max_bytes=1024), choice.at("name")
    if name not in names:
        raise Invalid(at, f"`{at}` is not the name of one of the `tools`.")
    return str(name)
