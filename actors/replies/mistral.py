"""`[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`, or newer `[TOOL_CALLS]name[ARGS]{…}` per call: Mistral. Pure."""

from __future__ import annotations

import re

from actors.replies.call_object import BLANKS, CallObject
from actors.replies.calls import ObjectReader

BEGINS = "[TOOL_CALLS]"
CALL_ID = "[CALL_ID]"
ARGS = "[ARGS]"
_NAMED = re.compile(r"[ \t\r\n]*([A-Za-z0-9_.-]{1,256})(?:\[CALL_ID\][A-Za-z0-9]*)?(?:\[ARGS\][ \t\r\n]*)?(?=\{)")
_NAMING = re.compile(r"[ \t\r\n]*[A-Za-z0-9_.-]{0,256}(?:\[[A-Z_]*\]?[A-Za-z0-9]*){0,2}[ \t\r\n]*")


class MistralReader(ObjectReader):
    def __init__(self) -> None:
        super().__init__(BEGINS)
        self._in_list = False

    def _enter(self, raw: str) -> None:
        super()._enter(raw)
        self._in_list = False

    def _around(self, *, final: bool) -> bool:
        return self._between(final=final) if self._in_list else self._first(final=final)

    def _first(self, *, final: bool) -> bool:
        """Behind the marker: a list of objects, or a name."""
        rest = self._text.lstrip(BLANKS)
        if rest.startswith("["):
            self._raw += self._text[: len(self._text) - len(rest) + 1]
            self._text = rest[1:]
            self._in_list = True
            self._start(CallObject())
            return True
        named = _NAMED.match(self._text)
        if named:
            self._raw += self._text[: named.end()]
            self._text = self._text[named.end() :]
            self._start(CallObject.of_arguments(named.group(1)))
            return True
        if _NAMING.fullmatch(self._text) and not final:
            return False
        return self._take_back(self._raw)

    def _between(self, *, final: bool) -> bool:
        """Behind an object of the list: `,` and another, or `]`."""
        rest = self._text.lstrip(BLANKS)
        if not rest and not final:
            return False
        if rest.startswith(","):
            self._raw = self._text[: len(self._text) - len(rest) + 1]
            self._text = rest[1:]
            self._start(CallObject())
            return True
        if rest.startswith("]"):
            self._text = rest[1:]
        return self._leave()

    def _ended(self, *, whole: bool) -> bool:
        return True if self._in_list else self._leave()
