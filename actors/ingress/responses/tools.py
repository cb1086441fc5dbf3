"""Tools as the Responses API names them → as chats do. Pure."""

from __future__ import annotations

from typing import Any

from actors.ingress.errors import Invalid
from actors.ingress.validate import Fields, check_text, wrong_type

MAX_TOOLS = 1024
_CHOICES = ("none", "auto", "required")


def chat_tools(fields: Fields) -> dict[str, Any]:
    """`tools` and `tool_choice` as in a chat. Raises Invalid, for built-in tools by their name."""
    tools = [
        _tool(value, f"tools[{number}]") for number, value in enumerate(fields.items("tools", most=MAX_TOOLS) or ())
    ]
    if tools and fields.raw("tool_choice") != "none":
        raise Invalid("tools", "`tools` are not supported.", code="unsupported_value")
    return {"tools": tools or None, "tool_choice": _choice(fields.raw("tool_choice"))}


def _tool(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    kind = check_text(value.get("type"), f"{path}.type", max_bytes=256)
    if kind != "function":
        at = f"{path}.type"
        raise Invalid(at, f"`{at}`: there is no tool {kind!r} here; give functions.", code="unsupported_value")
    return {"type": kind, "function": {name: part for name, part in value.items() if name != "type"}}


def _choice(value: Any) -> Any:
    if value is None or value in _CHOICES:
        return value
    at = "tool_choice"
    if isinstance(value, str):
        raise Invalid(at, f"`{at}` must be one of {', '.join(map(repr, _CHOICES))}, or name a function.")
    if not isinstance(value, dict):
        raise wrong_type(at, "a string or an object", value)
    if value.get("type") != "function":
        text = f"`{at}.type` must be 'function': there are no other tools here."
        raise Invalid(f"{at}.type", text, code="unsupported_value")
    name = check_text(value.get("name"), f"{at}.name", max_bytes=1024)
    return {"type": "function", "function": {"name": name}}
