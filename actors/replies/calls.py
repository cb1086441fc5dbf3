"""What the readers of tool calls share: text until a marker, then a call, then text again. Pure.

Blanks before a call and between calls are its syntax and not shown; all else is, a call that turns out to be none
included. Nothing is decided by where a piece of text happens to end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from actors.replies.call_object import BLANKS, CallObject, State
from actors.replies.parts import CallArguments, CallBegins, Part, ReasoningPart, TextPart


def partial(text: str, marker: str) -> int:
    """How many characters at the end of `text` may be the beginning of `marker` (not all of it)."""
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0


def undecided(text: str, markers: Sequence[str]) -> bool:
    """Whether more has to come before it is known if one of the markers begins `text`."""
    return any(len(text) < len(marker) and marker.startswith(text) for marker in markers)


def merged(parts: list[Part]) -> list[Part]:
    """The same with pieces of one text in one part."""
    told: list[Part] = []
    for part in parts:
        last = told[-1] if told else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            told[-1] = TextPart(last.text + part.text, last.logprobs + part.logprobs)
        elif isinstance(part, ReasoningPart) and isinstance(last, ReasoningPart):
            told[-1] = ReasoningPart(last.text + part.text)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments) and part.number == last.number:
            told[-1] = CallArguments(part.number, last.text + part.text)
        else:
            told.append(part)
    return told


class Unread:
    """Pieces of text that were not looked at yet. `length`: of all together; it is asked for with each of them."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.length = 0

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self.length += len(text)

    def take(self) -> str:
        text = "".join(self._pieces)
        self._pieces.clear()
        self.length = 0
        return text


class CallReader(ABC):
    """A `PartReader`. `begins`: what says that a call follows."""

    def __init__(self, begins: str) -> None:
        self._begins = begins
        self._text = ""
        """What has come and is not understood yet."""
        self._unread = Unread()
        """What has come since: blanks are not looked at before anything else comes. Some replies end in nothing but
        blanks, and those that wait are not to be gone through again for each."""
        self._parts: list[Part] = []
        self._number = 0
        self._in_call = False
        self._called = False
        """What came last was a call."""
        self._raw = ""
        """What began the present call, should it be none."""

    def push(self, text: str) -> list[Part]:
        self._unread.add(text)
        return self._read(final=False) if text.strip(BLANKS) else []

    def finish(self) -> list[Part]:
        return self._read(final=True)

    @property
    def held(self) -> int:
        """What began a call may turn out to be text."""
        unread = len(self._text) + self._unread.length
        return unread + (len(self._raw) if self._in_call else 0)

    def _read(self, *, final: bool) -> list[Part]:
        self._text += self._unread.take()
        while self._call(final=final) if self._in_call else self._outside(final=final):
            pass
        parts, self._parts = self._parts, []
        return merged(parts)

    def _outside(self, *, final: bool) -> bool:
        """Text, as far as it cannot be a marker or the blanks before one. Returns whether there is more to do."""
        found = self._text.find(self._begins)
        if found >= 0:
            end = len(self._text[:found].rstrip(BLANKS))
            self._say(self._text[:end])
            marker_end = found + len(self._begins)
            self._enter(self._text[end:marker_end])
            self._text = self._text[marker_end:]
            return True
        end = len(self._text)
        if not final:
            end -= partial(self._text, self._begins)
            end = len(self._text[:end].rstrip(BLANKS))
        elif self._called and not self._text.strip(BLANKS):
            end = 0
        self._say(self._text[:end])
        self._text = "" if final else self._text[end:]
        return False

    def _enter(self, raw: str) -> None:
        """A call seems to begin with `raw`."""
        self._raw, self._in_call = raw, True

    def _leave(self) -> bool:
        """The call is over."""
        self._in_call, self._called, self._raw = False, True, ""
        return True

    def _take_back(self, raw: str) -> bool:
        """It was no call: `raw` is text."""
        self._in_call, self._raw = False, ""
        self._say(raw)
        return True

    def _say(self, text: str) -> None:
        if text:
            self._called = False
            self._parts.append(TextPart(text))

    def _begin(self, name: str) -> None:
        self._parts.append(CallBegins(self._number, "", name))
        self._number += 1

    def _argue(self, text: str) -> None:
        """More arguments of the call that began last."""
        if text:
            self._parts.append(CallArguments(self._number - 1, text))

    @abstractmethod
    def _call(self, *, final: bool) -> bool:
        """A step within a call. Returns whether there is more to do."""


class ObjectReader(CallReader):
    """A reader whose calls are JSON objects. `_object` is the one that is being read."""

    def __init__(self, begins: str) -> None:
        super().__init__(begins)
        self._object: CallObject | None = None
        self._told = False

    @property
    def held(self) -> int:
        made = self._object
        if made is None:
            return super().held
        return super().held + (-len(self._raw) if self._told else len(made.raw))

    def _start(self, made: CallObject) -> None:
        self._object, self._told = made, False

    def _call(self, *, final: bool) -> bool:
        if self._object is None:
            return self._around(final=final)
        made = self._object
        taken = made.push(self._text)
        self._text = self._text[taken:]
        if made.begun:
            if not self._told:
                self._told = True
                self._begin(made.name)
            self._argue(made.take_arguments())
        if made.state is State.OPEN and not final:
            return False
        self._object = None
        if not made.begun:
            return self._take_back(self._raw + made.raw)
        self._raw = ""
        return self._ended(whole=made.state is State.DONE)

    def _ended(self, *, whole: bool) -> bool:
        """A call's object is over. Where is it to go on?"""
        return True

    @abstractmethod
    def _around(self, *, final: bool) -> bool:
        """A step before, between or behind the objects of a call."""
