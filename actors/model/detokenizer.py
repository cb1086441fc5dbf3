"""Text out of token ids, piece by piece (rule I2). Pure.

The text of a reply is the bytes of its tokens, decoded as UTF-8 with U+FFFD for what is not UTF-8. Whatever the pieces,
the deltas add up to what decoding all of it at once gives.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from actors.engine.stop_strings import StopStrings


class Detokenizer:
    """The text of one reply. `vocab_bytes[i]` are the bytes of token i, empty for control tokens.

    Shown as soon as it is certain: an incomplete character waits for its other bytes, and the beginning of a stop
    string waits until it is known to be none. A complete stop string waits too: whether it ended the reply is the
    engine's decision (`min_tokens` may forbid it), told by `finish`, or by another token that follows it.
    Ids outside the vocabulary have no text.

    `marks`: control tokens that are shown all the same, and how. They stand between the text and are not part of it: no
    stop string holds one, and one that is interrupted by them is one.
    """

    __slots__ = ("_decoder", "_finished", "_marks", "_pending", "_released", "_shown", "_stops", "_taken", "_vocab")

    def __init__(
        self, vocab_bytes: Sequence[bytes], stop: Sequence[str] = (), marks: Mapping[int, str] | None = None
    ) -> None:
        self._vocab = vocab_bytes
        self._shown = marks or {}
        self._marks: deque[tuple[int, str]] = deque()
        """Marks that wait, and how many bytes of text come before each."""
        self._taken = 0
        self._released = 0
        self._stops = StopStrings(stop) if any(stop) else None
        self._pending = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._finished = False

    def push(self, ids: Iterable[int]) -> str:
        """The text that these tokens make certain; often empty."""
        if self._finished:
            raise RuntimeError("tokens after the end of a reply")
        hold = 0
        for token in ids:
            data = self._vocab[token] if 0 <= token < len(self._vocab) else b""
            if token in self._shown:
                data = b""
                self._marks.append((self._taken, self._shown[token]))
            self._pending += data
            self._taken += len(data)
            if self._stops is not None:
                self._stops.push(data)
        if self._stops is not None:
            hold = max(self._stops.held, self._stops.tail)
        return self._release(len(self._pending) - hold)

    def finish(self, matched: str | None = None) -> str:
        """The rest of the text, cut before the stop string `matched` that ended the reply, if one did."""
        if self._finished:
            raise RuntimeError("a reply ends once")
        self._finished = True
        keep = len(self._pending)
        if matched is not None:
            keep -= self._matched_bytes(matched)
        text = self._release(keep)
        self._pending.clear()
        return text + self._decoder.decode(b"", True)

    def _matched_bytes(self, matched: str) -> int:
        """How much of the pending bytes to cut: from the start of the match to the end."""
        if self._stops is not None and self._stops.tail:
            return self._stops.tail
        start = self._pending.find(matched.encode("utf-8", "surrogatepass"))
        if start < 0:
            raise ValueError(f"the reply does not end with the stop string {matched!r}")
        return len(self._pending) - start

    def _release(self, count: int) -> str:
        text, end = "", self._released + count
        while self._marks and self._marks[0][0] <= end:
            at, mark = self._marks.popleft()
            text += self._decode(at - self._released) + self._decoder.decode(b"", True) + mark
        return text + self._decode(end - self._released)

    def _decode(self, count: int) -> str:
        data = bytes(self._pending[:count])
        del self._pending[:count]
        self._released += count
        return self._decoder.decode(data)
