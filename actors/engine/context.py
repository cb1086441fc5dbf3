"""The tokens of a conversation in one list that only grows at its end, and what is known of them by their content.

A turn that goes on from its session's head goes on in the same list, and with what is known of it: nothing that grows
with the conversation is copied or hashed again. What a turn has added becomes history by `settle`; of a turn that ended
otherwise, the next one cuts it off.
"""

from __future__ import annotations

import hashlib
from array import array

from actors.engine.kv.keys import PrefixKeys


class Context:
    """`tokens`, the first `length` of which are settled: they will never change, as long as this is the context.

    `keys_under` and `digest` are computed of what is new only, once the rest has been settled."""

    __slots__ = ("_digested", "_hash", "_keys", "length", "tokens")

    def __init__(self, tokens: list[int]) -> None:
        """Keeps the list. All of it is settled."""
        self.tokens = tokens
        self.length = len(tokens)
        self._keys: PrefixKeys | None = None
        self._hash = _hash()
        self._digested = 0

    def keys_under(self, root: bytes, page_size: int) -> PrefixKeys:
        """Keys of the full pages, of the chain that begins with `root`."""
        if self._keys is None or self._keys.root != root:
            self._keys = PrefixKeys(root, self.tokens, page_size)
        return self._keys

    def digest(self, count: int) -> bytes:
        """Says which the first `count` tokens are."""
        if count < self._digested:
            return digest_of(self.tokens[:count])
        whole = self._hash.copy()
        whole.update(_bytes(self.tokens[self._digested : count]))
        return whole.digest()

    def holds(self, tokens: list[int]) -> bool:
        """Whether these are what is settled, and what is known of them is true."""
        if self.tokens[: self.length] != tokens or self.digest(self.length) != digest_of(tokens):
            return False
        return self._keys is None or self._keys.true_of(tokens)

    def settle(self) -> None:
        """All that is in the list stays."""
        self._hash.update(_bytes(self.tokens[self._digested :]))
        self._digested = self.length = len(self.tokens)

    def cut(self) -> None:
        """Only what was settled stays."""
        del self.tokens[self.length :]
        if self._keys is not None:
            self._keys.cut(self.length)


def digest_of(tokens: list[int]) -> bytes:
    """`Context.digest` of a list of its own."""
    whole = _hash()
    whole.update(_bytes(tokens))
    return whole.digest()


def _hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=8)


def _bytes(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()
