"""`<tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>`: Qwen 3 Coder. Pure.

Values are written as they are, without quotes: what they become in JSON depends on the tool's schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from actors.replies.call_object import BLANKS
from actors.replies.calls import CallReader, partial, undecided

BEGINS = "<tool_call>"
ENDS = "</tool_call>"
_FUNCTION = re.compile(rf"[{BLANKS}]*<function=([^<>\n]{{1,256}})>")
_FUNCTIONING = re.compile(rf"[{BLANKS}]*(?:<function=[^<>\n]{{0,256}})?")
_PARAMETER = re.compile(r"<parameter=([^<>\n]{1,256})>\n?")
_VALUE_ENDS = "</parameter>"
_FUNCTION_ENDS = "</function>"
_PYTHONS = {"True": True, "False": False, "None": None}


class XmlReader(CallReader):
    """`schemas`: of each tool's arguments, by name."""

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(BEGINS)
        self._schemas = schemas
        self._step = self._function
        self._properties: Mapping[str, Any] = {}
        self._key = ""
        self._members = 0
        self._seen = 0
        """How much of an unfinished value is known not to hold its end."""

    def _enter(self, raw: str) -> None:
        super()._enter(raw)
        self._step = self._function
        self._members = 0

    def _call(self, *, final: bool) -> bool:
        return self._step(final=final)

    def _function(self, *, final: bool) -> bool:
        found = _FUNCTION.match(self._text)
        if found:
            name = found.group(1)
            properties = self._schemas.get(name, {}).get("properties")
            self._properties = properties if isinstance(properties, Mapping) else {}
            self._text, self._raw = self._text[found.end() :], ""
            self._begin(name)
            self._step = self._parameter
            return True
        waits = _FUNCTIONING.fullmatch(self._text) or undecided(self._text.lstrip(BLANKS), ("<function=",))
        return False if waits and not final else self._take_back(self._raw)

    def _parameter(self, *, final: bool) -> bool:
        """Between the parameters."""
        rest = self._text.lstrip(BLANKS)
        found = _PARAMETER.match(rest)
        if found and (found.end() < len(rest) or found.group().endswith("\n") or final):
            self._key, self._text, self._seen = found.group(1), rest[found.end() :], 0
            key = json.dumps(self._key, ensure_ascii=False)
            self._argue(("{" if self._members == 0 else ", ") + key + ": ")
            self._members += 1
            self._step = self._value
            if self._is_text():
                self._argue('"')
                self._step = self._text_value
            return True
        if rest.startswith(_FUNCTION_ENDS):
            self._argue("{}" if self._members == 0 else "}")
            self._text = rest[len(_FUNCTION_ENDS) :]
            self._step = self._closing
            return True
        if final:
            return self._leave()
        opening = re.fullmatch(r"<parameter=[^<>\n]{0,256}>?", rest) is not None
        if opening or undecided(rest, ("<parameter=", _FUNCTION_ENDS)):
            return False
        self._argue("{}" if self._members == 0 else "}")
        return self._leave()

    def _text_value(self, *, final: bool) -> bool:
        """A string: told as it comes."""
        found = self._text.find(_VALUE_ENDS)
        if found >= 0:
            self._argue(_escaped(self._text[:found].removesuffix("\n")) + '"')
            return self._value_over(found)
        end = len(self._text) - (0 if final else partial(self._text, _VALUE_ENDS))
        if not final and self._text[:end].endswith("\n"):
            end -= 1
        self._argue(_escaped(self._text[:end]))
        self._text = self._text[end:]
        return self._leave() if final else False

    def _value(self, *, final: bool) -> bool:
        """Anything else: told when it is whole."""
        found = self._text.find(_VALUE_ENDS, max(0, self._seen - len(_VALUE_ENDS)))
        if found >= 0:
            self._argue(_as_json(self._text[:found].removesuffix("\n")))
            return self._value_over(found)
        self._seen = len(self._text)
        if not final:
            return False
        self._argue(self._text)
        self._text = ""
        return self._leave()

    def _value_over(self, found: int) -> bool:
        self._text = self._text[found + len(_VALUE_ENDS) :]
        self._step = self._parameter
        return True

    def _closing(self, *, final: bool) -> bool:
        rest = self._text.lstrip(BLANKS)
        if rest.startswith(ENDS):
            self._text = rest[len(ENDS) :]
            return self._leave()
        return False if undecided(rest, (ENDS,)) and not final else self._leave()

    def _is_text(self) -> bool:
        schema = self._properties.get(self._key)
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        return kind == "string"


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _as_json(value: str) -> str:
    """A value as JSON: what is JSON already stays as it is; anything else is a string."""
    stripped = value.strip()
    if stripped in _PYTHONS:
        return json.dumps(_PYTHONS[stripped])
    try:
        json.loads(stripped)
    except (ValueError, RecursionError):
        return json.dumps(value, ensure_ascii=False)
    return stripped
