"""Chat messages as the OpenAI API has them → what a chat template takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.ingress.errors import Invalid
from actors.ingress.validate import check_text, wrong_type

MAX_MESSAGES = 100_000
MESSAGE_WORK = 32
_ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def read_messages(value: Any) -> list[dict[str, Any]]:
    """Validated messages: `role` and `content` (a string), and `name`, `tool_calls`, `tool_call_id`,
    `reasoning_content` where given.

    `developer` is told to templates as `system`; text parts are joined by line breaks. Raises Invalid naming the
    field down to the part.
    """
    if value is None:
        raise Invalid("messages", "`messages` is missing.", code="missing_required_parameter")
    if not isinstance(value, list):
        raise wrong_type("messages", "an array", value)
    if not value:
        raise Invalid("messages", "`messages` must not be empty.", code="empty_array")
    if len(value) > MAX_MESSAGES:
        raise Invalid("messages", f"`messages` has more than {MAX_MESSAGES} items.")
    return [_message(item, f"messages[{index}]") for index, item in enumerate(value)]


def text_bytes(messages: list[dict[str, Any]]) -> int:
    """Bytes of text in the messages: a lower bound for what the prompt holds."""
    return sum(len(message["content"].encode()) for message in messages)


def text_work(messages: list[dict[str, Any]]) -> int:
    """What a template has to go through, whether or not it shows it: in bytes of text, a message by itself counting as
    `MESSAGE_WORK` of them."""
    work = MESSAGE_WORK * len(messages)
    for message in messages:
        work += len(message["content"]) + len(message.get("reasoning_content", ""))
        work += sum(len(call["function"]["arguments"]) for call in message.get("tool_calls", ()))
    return work


def _message(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    role = _role(value, path)
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = _tool_calls(value, path) if role == "assistant" else []
    reasoning = _reasoning(value, path) if role == "assistant" else ""
    optional = role == "assistant" and bool(calls or reasoning or value.get("refusal"))
    message["content"] = _content(value, path, optional=optional)
    if not message["content"] and role == "assistant" and value.get("refusal") is not None:
        message["content"] = check_text(value["refusal"], f"{path}.refusal")
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    if role == "tool":
        if value.get("tool_call_id") is None:
            at = f"{path}.tool_call_id"
            raise Invalid(at, f"`{at}` is missing.", code="missing_required_parameter")
        message["tool_call_id"] = check_text(value["tool_call_id"], f"{path}.tool_call_id", max_bytes=1024)
    if value.get("name") is not None:
        message["name"] = check_text(value["name"], f"{path}.name", max_bytes=1024)
    return message


def _role(value: dict[str, Any], path: str) -> str:
    role = value.get("role")
    at = f"{path}.role"
    if role is None:
        raise Invalid(at, f"`{at}` is missing.", code="missing_required_parameter")
    if not isinstance(role, str):
        raise wrong_type(at, "a string", role)
    if role not in _ROLES:
        raise Invalid(at, f"`{at}` must be one of {', '.join(map(repr, _ROLES))}.")
    return role


def _content(value: dict[str, Any], path: str, *, optional: bool) -> str:
    content = value.get("content")
    at = f"{path}.content"
    if content is None:
        if optional:
            return ""
        raise Invalid(at, f"`{at}` is missing or null.", code="missing_required_parameter")
    return joined_text(content, at, _part)


def joined_text(content: Any, path: str, read_part: Callable[[Any, str], str]) -> str:
    """Text, or parts of text, which are joined by line breaks. Raises Invalid naming the part."""
    if isinstance(content, str):
        return check_text(content, path)
    if not isinstance(content, list):
        raise wrong_type(path, "a string or an array of parts", content)
    if not content:
        raise Invalid(path, f"`{path}` must not be an empty array.", code="empty_array")
    return "\n".join(read_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: Any, path: str) -> str:
    if not isinstance(part, dict):
        raise wrong_type(path, "an object", part)
    kind = part.get("type")
    if not isinstance(kind, str):
        raise wrong_type(f"{path}.type", "a string", kind)
    if kind not in _TEXT_PARTS:
        raise Invalid(f"{path}.type", f"`{path}.type` must be 'text': this model reads text only.")
    field = "refusal" if kind == "refusal" else "text"
    return check_text(part.get(field), f"{path}.{field}")


def _reasoning(value: dict[str, Any], path: str) -> str:
    """What the model thought, if the client sends it back: templates keep or drop it as the model is used to it."""
    reasoning = value.get("reasoning_content")
    return "" if reasoning is None else check_text(reasoning, f"{path}.reasoning_content")


def _tool_calls(value: dict[str, Any], path: str) -> list[dict[str, Any]]:
    calls = value.get("tool_calls")
    at = f"{path}.tool_calls"
    if calls is None:
        return []
    if not isinstance(calls, list):
        raise wrong_type(at, "an array", calls)
    return [_tool_call(call, f"{at}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: Any, path: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise wrong_type(f"{path}.function" if isinstance(call, dict) else path, "an object", function)
    return {
        "id": check_text(call.get("id") or "", f"{path}.id", max_bytes=1024),
        "type": "function",
        "function": {
            "name": check_text(function.get("name"), f"{path}.function.name", max_bytes=1024),
            "arguments": check_text(function.get("arguments", ""), f"{path}.function.arguments"),
        },
    }
