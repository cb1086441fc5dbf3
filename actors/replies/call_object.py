"""A tool call written as one JSON object, read as it comes. Pure.

What matters is found, and nothing else is judged: `{"name": …, "arguments": {…}}` in any order and with either name
for the arguments, which are passed on as the model writes them. They may be wrong JSON; that is for whoever is called
to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from enum import Enum, auto

BLANKS = " \t\r\n"
_NAME = "name"
_ARGUMENTS = frozenset({"arguments", "parameters"})
_EXPECTED = frozenset({_NAME, "type", "id", *_ARGUMENTS})
"""Members that may come before it is clear that this is a call."""
_IN_VALUE = re.compile(r'["{}\[\]<]')
_IN_STRING = re.compile(r'["\\]')
_AFTER_PLAIN = re.compile(rf"[,}}\]<{BLANKS}]")


class State(Enum):
    OPEN = auto()
    DONE = auto()
    BROKEN = auto()
    """The next character cannot be part of it."""


class CallObject:
    """Push text until `state` is not OPEN. `begun`: it is a call; its name is known, and its arguments come.

    `names`: of tools; an object that names another is broken. None: any name will do.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        self.state = State.OPEN
        self.name = ""
        self.raw = ""
        """All that was taken, as long as it has not begun."""
        self._names = names
        self._step: Callable[[str, int], int] = self._before
        self._key = ""
        self._string = ""
        self._got: Callable[[str], None] = self._got_key
        self._escaped = False
        self._depth = 0
        self._in_string = False
        self._has_arguments = False
        self._arguments = ""
        self._keeps = False
        self._alone = False
        """There is no object around the arguments."""

    @classmethod
    def of_arguments(cls, name: str) -> CallObject:
        """For a call whose name stands before its arguments."""
        made = cls()
        made.name, made._key, made._alone = name, "arguments", True
        made._step = made._value
        return made

    @property
    def begun(self) -> bool:
        return bool(self.name) and self._has_arguments

    def take_arguments(self) -> str:
        """The text of arguments that is new; none before it has begun."""
        if not self.begun:
            return ""
        new, self._arguments = self._arguments, ""
        return new

    def push(self, text: str) -> int:
        """How many of these characters belong to it."""
        at = 0
        while at < len(text) and self.state is State.OPEN:
            at = self._step(text, at)
        if not self.begun:
            self.raw += text[:at]
        return at

    def _break(self, at: int) -> int:
        self.state = State.BROKEN
        return at

    def _before(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return at + 1
        if text[at] != "{":
            return self._break(at)
        self._step = self._member
        return at + 1

    def _member(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return at + 1
        if text[at] == "}":
            return self._close(at)
        if text[at] != '"':
            return self._break(at)
        return self._begin_string(self._got_key, at)

    def _begin_string(self, got: Callable[[str], None], at: int) -> int:
        self._string, self._escaped, self._got = "", False, got
        self._step = self._in_own_string
        return at + 1

    def _in_own_string(self, text: str, at: int) -> int:
        """A string that is needed whole: a key, a name, arguments as a string."""
        if self._escaped:
            self._string, self._escaped = self._string + text[at], False
            return at + 1
        found = _IN_STRING.search(text, at)
        end = found.start() if found else len(text)
        self._string += text[at:end]
        if found is None:
            return end
        if text[end] == "\\":
            self._string, self._escaped = self._string + "\\", True
            return end + 1
        try:
            value = json.loads(f'"{self._string}"', strict=False)
        except ValueError:
            return self._break(end)
        self._got(value)
        return end if self.state is State.BROKEN else end + 1

    def _got_key(self, key: str) -> None:
        self._key = key
        self._step = self._colon
        if key not in _EXPECTED and not self.begun:
            self.state = State.BROKEN

    def _colon(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return at + 1
        if text[at] != ":":
            return self._break(at)
        self._step = self._value
        return at + 1

    def _value(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return at + 1
        first = text[at]
        is_arguments = self._key in _ARGUMENTS and not self._has_arguments
        if self._key == _NAME and not self.name:
            return self._begin_string(self._got_name, at) if first == '"' else self._break(at)
        if is_arguments and first == '"':
            return self._begin_string(self._got_arguments, at)
        if is_arguments and first != "{":
            return self._break(at)
        self._keeps = is_arguments
        self._has_arguments = self._has_arguments or is_arguments
        self._depth, self._in_string, self._escaped = 0, False, False
        self._step = self._nested if first in '{["' else self._plain
        return at

    def _got_name(self, name: str) -> None:
        self._step = self._after
        self.name = name
        if not name or (self._names is not None and name not in self._names):
            self.name, self.state = "", State.BROKEN

    def _got_arguments(self, value: str) -> None:
        """Some models write the arguments' JSON as a string."""
        self._value_over()
        if not value.lstrip(BLANKS).startswith("{"):
            self.state = State.BROKEN
            return
        self._has_arguments = True
        self._arguments += value

    def _nested(self, text: str, at: int) -> int:
        """Within an object, an array or a string that is a member's value."""
        start = at
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_IN_STRING if self._in_string else _IN_VALUE).search(text, at)
            if found is None:
                at = len(text)
                break
            at, mark = found.end(), found.group()
            if mark == "<":
                # No JSON has one here: the model has left its call.
                return self._break(self._keep(text, start, at - 1))
            if mark == "\\":
                self._escaped = True
            elif mark == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if mark in "{[" else -1
            if self._depth == 0 and not self._in_string:
                self._value_over()
                break
        return self._keep(text, start, at)

    def _keep(self, text: str, start: int, end: int) -> int:
        if self._keeps:
            self._arguments += text[start:end]
        return end

    def _plain(self, text: str, at: int) -> int:
        """A number, true, false or null, of which nothing is needed."""
        found = _AFTER_PLAIN.search(text, at)
        if found is None:
            return len(text)
        self._step = self._after
        return found.start()

    def _after(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return at + 1
        if text[at] == ",":
            self._step = self._member
            return at + 1
        return self._close(at) if text[at] == "}" else self._break(at)

    def _close(self, at: int) -> int:
        if not self.name:
            return self._break(at)
        if not self._has_arguments:
            self._has_arguments, self._arguments = True, "{}"
        self.state = State.DONE
        return at + 1

    def _value_over(self) -> None:
        if self._alone:
            self.state = State.DONE
        self._step = self._after
