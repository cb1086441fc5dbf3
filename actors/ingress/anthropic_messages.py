"""`system` and `messages` as Anthropic's API has them → what a chat template takes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from actors.ingress.chat_messages import MAX_MESSAGES
from actors.ingress.errors import Invalid
from actors.ingress.validate import check_text, wrong_type

MAX_NAME_BYTES = 1024
_ROLES = ("user", "assistant", "system")


def read_conversation(system: Any, messages: Any) -> list[dict[str, Any]]:
    """Chat messages with the roles system, user, assistant and tool.

    Text blocks are joined by line breaks, and so are neighbours of one role, as Anthropic's API does it. Thinking goes
    along as `reasoning_content`; `cache_control` and `citations` are not looked at. Raises Invalid naming the field
    down to the block.
    """
    chat = _Conversation()
    if system is not None:
        chat.add(_Said("system", [_plain_text(system, "system")]))
    if messages is None:
        raise _missing("messages")
    if not isinstance(messages, list):
        raise wrong_type("messages", "an array", messages)
    if not messages:
        raise Invalid("messages", "`messages` must not be empty.", code="empty_array")
    if len(messages) > MAX_MESSAGES:
        raise Invalid("messages", f"`messages` has more than {MAX_MESSAGES} items.")
    for index, message in enumerate(messages):
        _read_message(message, f"messages[{index}]", chat)
    told = chat.messages
    if told[-1]["role"] == "assistant":
        _check_prefill(told[-1], f"messages[{len(messages) - 1}].content")
    return told


def _check_prefill(message: dict[str, Any], path: str) -> None:
    """A last message of the assistant's is the beginning of its reply. Raises Invalid."""
    if message.get("tool_calls"):
        raise Invalid(path, f"`{path}` ends with calls of tools, whose results are missing: tool_result blocks.")
    if message["content"] != message["content"].rstrip():
        raise Invalid(path, f"`{path}` is the beginning of the reply, and may not end with white space.")


@dataclass(slots=True)
class _Said:
    """One message in the making: its texts are put together once, however many there are."""

    role: str
    texts: list[str]
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self.role, "content": "\n".join(filter(None, self.texts)), **self.more}
        if self.thoughts:
            message["reasoning_content"] = "\n".join(filter(None, self.thoughts))
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class _Conversation:
    """Messages in the order in which they are read; neighbours of one role become one."""

    def __init__(self) -> None:
        self.tool_names: dict[str, str] = {}
        """By the id of the call."""
        self._said: list[_Said] = []

    def add(self, new: _Said) -> None:
        last = self._said[-1] if self._said else None
        if last is None or last.role != new.role or new.role == "tool":
            self._said.append(new)
            return
        last.texts += new.texts
        last.thoughts += new.thoughts
        last.calls += new.calls

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [said.message() for said in self._said]


def _read_message(value: Any, path: str, chat: _Conversation) -> None:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    role = value.get("role")
    if role is None:
        raise _missing(f"{path}.role")
    if not isinstance(role, str):
        raise wrong_type(f"{path}.role", "a string", role)
    if role not in _ROLES:
        raise Invalid(f"{path}.role", f"`{path}.role` must be 'user' or 'assistant'.")
    content, at = value.get("content"), f"{path}.content"
    if role == "system":
        chat.add(_Said("system", [_plain_text(content, at)]))
    elif role == "user":
        _read_user(content, at, chat)
    else:
        _read_assistant(content, at, chat)


def _read_user(content: Any, path: str, chat: _Conversation) -> None:
    """Texts, and results of tools between them."""
    texts: list[str] = []
    told = False
    for block, kind, at in _blocks(content, path):
        if kind == "text":
            texts.append(_text(block, "text", at))
        elif kind == "tool_result":
            if texts:
                chat.add(_Said("user", texts))
                texts = []
            chat.add(_tool_result(block, at, chat))
            told = True
        else:
            raise _unreadable(kind, at, "text and tool_result")
    if texts or not told:
        chat.add(_Said("user", texts))


def _read_assistant(content: Any, path: str, chat: _Conversation) -> None:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block, kind, at in _blocks(content, path):
        if kind == "text":
            texts.append(_text(block, "text", at))
        elif kind == "tool_use":
            calls.append(_tool_use(block, at, chat))
        elif kind == "thinking":
            thoughts.append(_text(block, "thinking", at))
        elif kind != "redacted_thinking":  # Of another server, which alone can read it.
            raise _unreadable(kind, at, "text, thinking and tool_use")
    chat.add(_Said("assistant", texts, thoughts, calls))


def _blocks(content: Any, path: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """(block, its type, its path); a plain string is one text block."""
    if content is None:
        raise _missing(path)
    if isinstance(content, str):
        yield {"text": check_text(content, path)}, "text", path
        return
    if not isinstance(content, list):
        raise wrong_type(path, "a string or an array of blocks", content)
    if not content:
        raise Invalid(path, f"`{path}` must not be an empty array.", code="empty_array")
    for index, block in enumerate(content):
        at = f"{path}[{index}]"
        if not isinstance(block, dict):
            raise wrong_type(at, "an object", block)
        kind = block.get("type")
        if not isinstance(kind, str):
            raise wrong_type(f"{at}.type", "a string", kind)
        yield block, kind, at


def _plain_text(content: Any, path: str) -> str:
    """Content that can be text only."""
    texts = []
    for block, kind, at in _blocks(content, path):
        if kind != "text":
            raise _unreadable(kind, at, "text")
        texts.append(_text(block, "text", at))
    return "\n".join(texts)


def _tool_result(block: dict[str, Any], path: str, chat: _Conversation) -> _Said:
    call_id = _text(block, "tool_use_id", path, MAX_NAME_BYTES)
    content = block.get("content")
    texts = [] if content is None or content == [] else [_plain_text(content, f"{path}.content")]
    name = chat.tool_names.get(call_id)
    return _Said("tool", texts, more={"tool_call_id": call_id, **({"name": name} if name is not None else {})})


def _tool_use(block: dict[str, Any], path: str, chat: _Conversation) -> dict[str, Any]:
    call_id, name = (_text(block, field_name, path, MAX_NAME_BYTES) for field_name in ("id", "name"))
    given = block.get("input")
    if not isinstance(given, dict):
        raise wrong_type(f"{path}.input", "an object", given)
    chat.tool_names[call_id] = name
    function = {"name": name, "arguments": orjson.dumps(given).decode()}
    return {"id": call_id, "type": "function", "function": function}


def _text(block: dict[str, Any], name: str, path: str, max_bytes: int = 2**31) -> str:
    return check_text(block.get(name), f"{path}.{name}", max_bytes=max_bytes)


def _missing(path: str) -> Invalid:
    return Invalid(path, f"`{path}` is missing.", code="missing_required_parameter")


def _unreadable(kind: str, path: str, readable: str) -> Invalid:
    shown = kind if len(kind) <= 40 else f"{kind[:40]}…"
    message = f"`{path}.type` is '{shown}': blocks of this type cannot be read here, only {readable}."
    return Invalid(f"{path}.type", message, code="unsupported_value")
