"""What each request's grammar allows next.

A matcher's state is derived from the output so far, each time it is asked: neither a preemption nor a step in flight
nor a step that was computed twice can put it out of step.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from actors.runner.grammar.vocabulary import library_tokenizer

MISSING = "structured output is not installed on this server: pip install 'remora[grammar]'"
NO_TEXT = "this model has no text or no end-of-reply token, so it cannot be held to a grammar"
CONTROL = 0xFF
"""Begins the library's spelling of control tokens; no text has this byte."""
DEAD_END = "the grammar allows nothing after this output"


class GrammarError(Exception):
    """The library does not take this grammar. The message is for people."""


class DeadEnd(Exception):
    """A grammar allows no token after what its request has put out. The message is for people."""


class _State:
    """One request's matcher and the output tokens that it has taken."""

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher
        self.taken: list[int] = []

    def follow(self, output: Sequence[int]) -> None:
        """Bring the matcher to where `output` ends. Raises DeadEnd for an output that the grammar does not allow."""
        common = 0
        for ours, theirs in zip(self.taken, output, strict=False):
            if ours != theirs:
                break
            common += 1
        if common < len(self.taken):
            self.matcher.rollback(len(self.taken) - common)
            del self.taken[common:]
        for token in output[common:]:
            if not self.matcher.consume_token(token):
                raise DeadEnd(DEAD_END)
            self.taken.append(token)


class Matchers:
    """The grammars of one runner's requests, by uid.

    `compile`, `open` and `close` may be called from any thread; `allowed` from the one that computes steps.
    """

    def __init__(self, vocab_bytes: Sequence[bytes], eos_ids: frozenset[int]) -> None:
        self._vocab_bytes = vocab_bytes
        self._eos_ids = eos_ids
        self._tokenizer: Any = None
        self._loading = threading.Lock()
        self._states: dict[int, _State] = {}
        self._first_bytes = np.array([text[0] if text else -1 for text in vocab_bytes], dtype=np.int16)

    def __len__(self) -> int:
        return len(self._states)

    def compile(self, source: str) -> object:
        """A prototype matcher for `open`. Raises GrammarError. `source` must have passed `grammar.check`, which says
        that this ends; the library lets go of the GIL meanwhile."""
        import llguidance

        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = library_tokenizer(self._vocab_bytes, self._eos_ids)
        matcher = llguidance.LLMatcher(self._tokenizer, source, log_level=0)
        if matcher.is_error():
            raise GrammarError(_brief(matcher.get_error()))
        try:
            first = _State(matcher.deep_copy())
            self._mask(first)
        except DeadEnd:
            raise GrammarError("it allows no output at all") from None
        return matcher

    def open(self, uid: int, prototype: object) -> None:
        """Let request `uid` be held to a compiled grammar."""
        self._states[uid] = _State(cast(Any, prototype).deep_copy())

    def close(self, uid: int) -> None:
        """Request `uid` is over. Nothing happens if it has no grammar."""
        self._states.pop(uid, None)

    def allowed(self, uid: int, output: Sequence[int]) -> NDArray[np.bool_]:
        """bool [vocab_size]: tokens that may follow `output`; an end-of-reply token where the output is complete.

        Raises DeadEnd.
        """
        state = self._states[uid]
        state.follow(output)
        return self._mask(state)

    def _mask(self, state: _State) -> NDArray[np.bool_]:
        packed = state.matcher.compute_bitmask()
        bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")[: len(self._vocab_bytes)]
        allowed = bits.view(np.bool_)
        forced = state.matcher.compute_ff_bytes()
        if forced and forced[0] != CONTROL:
            # Where the grammar leaves no choice and the vocabulary cannot spell what it wants, the library allows what
            # would come after that.
            allowed = allowed & (self._first_bytes == forced[0])
        if state.matcher.is_error() or not allowed.any():
            raise DeadEnd(DEAD_END)
        return allowed


def matchers_for(vocab_bytes: Sequence[bytes], eos_ids: frozenset[int]) -> Matchers | str:
    """Matchers for a model, or why there cannot be any."""
    if importlib.util.find_spec("llguidance") is None:
        return MISSING
    if not eos_ids or not any(vocab_bytes):
        return NO_TEXT
    return Matchers(vocab_bytes, eos_ids)


def _brief(message: str) -> str:
    return message.split("\n<state>")[0].strip()[:400]
