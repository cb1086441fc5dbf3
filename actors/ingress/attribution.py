"""Which tokens of a reply became its text, which its reasoning, and which neither (tags, calls, what a stop string cut
off). Pure.

Decoder and reader both hold text back, and the reader leaves some out. So each token is given its place in the decoded
text, and waits until the reader has read past it: then it belongs to the part that shows any of that text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from actors.ingress.text import Decoder
from actors.messages import TokenIds, TokenLogprobs
from actors.replies.calls import merged
from actors.replies.parts import Part, PartReader, ReasoningPart, TextPart

Tell = Callable[[int, TokenLogprobs], Any]
"""A token's id and its log probabilities → what a part carries of them."""


@dataclass(slots=True)
class _Token:
    """Its text is [begin, end) of the decoded one; `end` is not known while that is held back."""

    begin: int
    end: int | None
    told: Any


class TracedReader:
    """Reads a reply token by token. The parts are those that `reader` gives; where there is `tell`, texts carry the log
    probabilities of their tokens. `reasoning_tokens` counts those that are shown as reasoning."""

    def __init__(self, decoder: Decoder, reader: PartReader, tell: Tell | None) -> None:
        self.reasoning_tokens = 0
        self._decoder = decoder
        self._reader = reader
        self._tell = tell
        self._waiting: deque[_Token] = deque()
        self._fed = 0
        """Characters that the reader was given."""
        self._rest = ""
        """The last of them: those that it had not read, and those that came since."""

    def push(self, ids: TokenIds, logprobs: Sequence[TokenLogprobs]) -> list[Part]:
        """`logprobs`: of the last of `ids`."""
        parts: list[Part] = []
        first = len(ids) - len(logprobs)
        for index, token in enumerate(ids):
            told = self._tell(token, logprobs[index - first]) if self._tell is not None and index >= first else None
            self._waiting.append(_Token(self._fed, None, told))
            text = self._decoder.push((token,))
            if text:
                parts += self._read(text, self._reader.push)
        return merged(parts)

    def finish(self, matched: str | None) -> list[Part]:
        parts = self._read(self._decoder.finish(matched), self._reader.push)
        rest = self._reader.finish()
        return merged(parts + self._settle(rest, self._fed))

    def _read(self, text: str, push: Callable[[str], list[Part]]) -> list[Part]:
        end = self._fed + len(text)
        for token in reversed(self._waiting):
            if token.end is not None:
                break
            token.end = end if text else None
        self._fed, self._rest = end, self._rest + text
        return self._settle(push(text), self._fed - self._reader.held)

    def _settle(self, parts: list[Part], read: int) -> list[Part]:
        """`parts` have come, and the reader has read up to `read`."""
        begin = self._fed - len(self._rest)
        window, self._rest = self._rest[: read - begin], self._rest[read - begin :]
        places = _places(parts, window, begin)
        told: dict[int, list[Any]] = {}
        while self._waiting and (first := self._waiting[0]).end is not None:
            shown = next((at for at, start, end in places if start < first.end and first.begin < end), None)
            if shown is None and first.end > read:
                break
            self._waiting.popleft()
            if shown is not None and isinstance(parts[shown], ReasoningPart):
                self.reasoning_tokens += 1
            elif shown is not None and first.told is not None:
                told.setdefault(shown, []).append(first.told)
        return [_with(part, told.get(at)) for at, part in enumerate(parts)]


def _places(parts: Sequence[Part], window: str, begin: int) -> list[tuple[int, int, int]]:
    """(which, begin, end) of the texts among `parts`, which are in `window` in this order, with gaps: tags and blanks
    stand before a text, or between two."""
    places: list[tuple[int, int, int]] = []
    cursor = 0
    for index, part in enumerate(parts):
        if not isinstance(part, (TextPart, ReasoningPart)) or not part.text:
            continue
        last = index == len(parts) - 1 and window.endswith(part.text)
        at = max(cursor, len(window) - len(part.text)) if last else window.find(part.text, cursor)
        if at >= 0:
            places.append((index, begin + at, begin + at + len(part.text)))
            cursor = at + len(part.text)
    return places


def _with(part: Part, told: list[Any] | None) -> Part:
    return replace(part, logprobs=tuple(told)) if told and isinstance(part, TextPart) else part
