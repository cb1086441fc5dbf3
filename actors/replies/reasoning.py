"""`<think>…</think>` before the answer: what a model writes for itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from actors.replies.call_object import BLANKS
from actors.replies.calls import Unread, merged, partial, undecided
from actors.replies.parts import Part, PartReader, ReasoningPart


@dataclass(frozen=True, slots=True)
class Tags:
    begins: str
    ends: str


class ReasoningReader:
    """A `PartReader` around another, `answer`, which reads what comes after the reasoning. `begun`: the prompt ended
    with the opening tag. Blanks around the reasoning are not shown."""

    def __init__(self, tags: Tags, answer: PartReader, *, begun: bool) -> None:
        self._tags = tags
        self._answer = answer
        self._text = ""
        self._unread = Unread()
        """As in `CallReader`, before the answer."""
        self._where = self._first if begun else self._before

    def push(self, text: str) -> list[Part]:
        self._unread.add(text)
        return self._read(final=False) if text.strip(BLANKS) or self._where == self._after else []

    @property
    def held(self) -> int:
        return len(self._text) + self._unread.length + self._answer.held

    def finish(self) -> list[Part]:
        return merged(self._read(final=True) + self._answer.finish())

    def _read(self, *, final: bool) -> list[Part]:
        self._text += self._unread.take()
        parts: list[Part] = []
        while self._where(parts, final):
            pass
        return merged(parts)

    def _before(self, parts: list[Part], final: bool) -> bool:
        """Nothing but blanks so far: reasoning, or an answer without it."""
        rest = self._text.lstrip(BLANKS)
        if rest.startswith(self._tags.begins):
            self._text = rest[len(self._tags.begins) :]
            self._where = self._blanks
            return True
        if (not rest or undecided(rest, (self._tags.begins,))) and not final:
            return False
        self._where = self._after
        return True

    def _first(self, parts: list[Part], final: bool) -> bool:
        """Some models repeat the tag that the prompt ended with."""
        rest = self._text.lstrip(BLANKS)
        if undecided(rest, (self._tags.begins,)) and not final:
            return False
        self._text = rest.removeprefix(self._tags.begins)
        self._where = self._blanks
        return True

    def _blanks(self, parts: list[Part], final: bool) -> bool:
        self._text = self._text.lstrip(BLANKS)
        if not self._text:
            return False
        self._where = self._inside
        return True

    def _inside(self, parts: list[Part], final: bool) -> bool:
        ends = self._tags.ends
        found = self._text.find(ends)
        end = found if found >= 0 else len(self._text) - (0 if final else partial(self._text, ends))
        end = len(self._text[:end].rstrip(BLANKS))
        if end:
            parts.append(ReasoningPart(self._text[:end]))
        if found < 0:
            self._text = "" if final else self._text[end:]
            return False
        self._text = self._text[found + len(ends) :]
        self._where = self._behind
        return True

    def _behind(self, parts: list[Part], final: bool) -> bool:
        """The blanks between reasoning and answer."""
        self._text = self._text.lstrip(BLANKS)
        if not self._text:
            return False
        self._where = self._after
        return True

    def _after(self, parts: list[Part], final: bool) -> bool:
        text, self._text = self._text, ""
        parts += self._answer.push(text)
        return False
