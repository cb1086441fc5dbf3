"""Input items of the Responses API: read, listed, and told to chat templates as messages. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from actors.ingress.chat_messages import joined_text
from actors.ingress.errors import Invalid
from actors.ingress.responses.ids import new_token
from actors.ingress.validate import check_text, wrong_type

MAX_ITEMS = 100_000
MAX_NAME_BYTES = 1024
Item = dict[str, Any]
_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def read_input(value: Any, path: str = "input") -> list[Item]:
    """A text, or items, each with an id of its own. Raises Invalid naming the field down to the part."""
    if value is None:
        raise Invalid(path, f"`{path}` is missing.", code="missing_required_parameter")
    if isinstance(value, str):
        return [_message("user", check_text(value, path))]
    return read_items(value, path)


def read_items(value: Any, path: str, *, most: int = MAX_ITEMS) -> list[Item]:
    """Items; reasoning is read over. Raises Invalid naming the field."""
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array" if path == "input" else "an array", value)
    if len(value) > most:
        raise Invalid(path, f"`{path}` has {len(value)} items; at most {most} are taken.")
    found = (_item(item, f"{path}[{number}]") for number, item in enumerate(value))
    return [item for item in found if item is not None]


def _item(value: Any, path: str) -> Item | None:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    kind = value.get("type", "message" if "role" in value else None)
    if kind is None:
        raise Invalid(f"{path}.type", f"`{path}.type` is missing.", code="missing_required_parameter")
    if not isinstance(kind, str):
        raise wrong_type(f"{path}.type", "a string", kind)
    if kind == "reasoning":
        return None  # What a model thought is not shown to it again: templates leave it out, too.
    reader = _READERS.get(kind)
    if reader is None:
        shown = kind if len(kind) <= 64 else kind[:64] + "…"
        text = f"`{path}.type`: items of type {shown!r} are not supported here."
        raise Invalid(f"{path}.type", text, code="unsupported_value")
    return reader(value, path)


def _read_message(value: Item, path: str) -> Item:
    role = value.get("role")
    if not isinstance(role, str):
        raise wrong_type(f"{path}.role", "a string", role)
    if role not in _ROLES:
        raise Invalid(f"{path}.role", f"`{path}.role` must be one of {', '.join(map(repr, _ROLES))}.")
    return _message(role, joined_text(value.get("content"), f"{path}.content", _part))


def _read_call(value: Item, path: str) -> Item:
    return {
        "id": f"fc_{new_token()}",
        "type": "function_call",
        "call_id": _name(value, path, "call_id"),
        "name": _name(value, path, "name"),
        "arguments": check_text(value.get("arguments"), f"{path}.arguments"),
        "status": "completed",
    }


def _read_output(value: Item, path: str) -> Item:
    return {
        "id": f"fco_{new_token()}",
        "type": "function_call_output",
        "call_id": _name(value, path, "call_id"),
        "output": joined_text(value.get("output"), f"{path}.output", _part),
        "status": "completed",
    }


_READERS: dict[str, Callable[[Item, str], Item]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_output,
}


def _message(role: str, text: str) -> Item:
    part: Item = {"type": "input_text", "text": text}
    if role == "assistant":
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": f"msg_{new_token()}", "type": "message", "role": role, "content": [part], "status": "completed"}


def _part(part: Any, path: str) -> str:
    if not isinstance(part, dict):
        raise wrong_type(path, "an object", part)
    kind = part.get("type")
    if not isinstance(kind, str):
        raise wrong_type(f"{path}.type", "a string", kind)
    if kind not in _TEXTS:
        text = f"`{path}.type` must be 'input_text' or 'output_text': this model reads text only."
        raise Invalid(f"{path}.type", text, code="unsupported_value")
    return check_text(part.get(_TEXTS[kind]), f"{path}.{_TEXTS[kind]}")


def _name(value: Item, path: str, field: str) -> str:
    text = check_text(value.get(field), f"{path}.{field}", max_bytes=MAX_NAME_BYTES)
    if not text:
        raise Invalid(f"{path}.{field}", f"`{path}.{field}` must not be empty.", code="empty_string")
    return text


def as_messages(items: Sequence[Item]) -> list[dict[str, Any]]:
    """What a chat template takes: calls belong to the assistant's message that they stand behind."""
    messages: list[dict[str, Any]] = []
    for item in items:
        if item["type"] == "message":
            role = "system" if item["role"] == "developer" else item["role"]
            messages.append({"role": role, "content": item["content"][0]["text"]})
        elif item["type"] == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
    return messages
