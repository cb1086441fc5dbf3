"""Find stop strings in text that arrives in pieces. Pure; shared by the engine (which decides) and the detokeniser
(which must not show what may still become a stop string).

Works on bytes: a token may end in the middle of a character, and a stop string in the middle of a token. UTF-8 makes
matching bytes the same as matching characters. One automaton (Aho-Corasick) walks all strings at once, so a byte costs
the same however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The stop strings of one request, and how far the text so far has got into them.

    Empty strings are no stop strings: they are left out. `held` is how many bytes at the end of the text could be the
    beginning of a stop string. `tail` is how many bytes at the end of the text belong to the match that the last
    `push` found, everything after it included; 0 when it found none.
    """

    __slots__ = ("_children", "_depth", "_fail", "_matches", "_state", "held", "tail")

    def __init__(self, stops: Sequence[str]) -> None:
        self._children: list[dict[int, int]] = [{}]
        self._depth = [0]
        self._matches: list[str | None] = [None]
        for stop in stops:
            # A lone surrogate is not text and can never be matched; it must not raise here either.
            self._insert(stop, stop.encode("utf-8", "surrogatepass"))
        self._fail = self._failure_links()
        self._state = 0
        self.held = 0
        self.tail = 0

    def push(self, data: bytes) -> str | None:
        """Take the next bytes of the text. Returns the stop string that is complete first, if any is.

        Of several that end at the same byte it is the longest. A caller that ignores a match just goes on pushing.
        """
        found: str | None = None
        self.tail = 0
        state = self._state
        for position, byte in enumerate(data):
            state = self._step(state, byte)
            matched = self._matches[state]
            if matched is not None and found is None:
                found = matched
                self.tail = len(matched.encode("utf-8", "surrogatepass")) + len(data) - position - 1
        self._state = state
        self.held = self._depth[state]
        return found

    def _step(self, state: int, byte: int) -> int:
        while byte not in self._children[state]:
            if state == 0:
                return 0
            state = self._fail[state]
        return self._children[state][byte]

    def _insert(self, stop: str, encoded: bytes) -> None:
        if not encoded:
            return
        state = 0
        for byte in encoded:
            if byte not in self._children[state]:
                self._children[state][byte] = len(self._children)
                self._children.append({})
                self._depth.append(self._depth[state] + 1)
                self._matches.append(None)
            state = self._children[state][byte]
        self._matches[state] = stop

    def _failure_links(self) -> list[int]:
        """For every state, the state of its longest proper suffix. Also hands down matches along these links: a
        state keeps its own (the longest), else the longest that ends there."""
        fail = [0] * len(self._children)
        queue = list(self._children[0].values())
        for state in queue:
            for byte, child in self._children[state].items():
                suffix = fail[state]
                while suffix and byte not in self._children[suffix]:
                    suffix = fail[suffix]
                fail[child] = self._children[suffix].get(byte, 0)
                queue.append(child)
            if self._matches[state] is None:
                self._matches[state] = self._matches[fail[state]]
        return fail
