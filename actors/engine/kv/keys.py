"""Names of page contents: a page's key stands for its tokens and everything before them (rule K3)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from functools import cache


class PrefixKeys:
    """Keys of the full pages of a growing list of tokens, each computed once.

    `tokens` is read when a key is wanted for the first time, and may have grown by then; it must never change below,
    unless `cut` is told.
    """

    __slots__ = ("_keys", "_pack", "_page_size", "root", "tokens")

    def __init__(self, root: bytes, tokens: Sequence[int], page_size: int) -> None:
        self.root = root
        self.tokens = tokens
        self._page_size = page_size
        self._pack = _packer(page_size)
        self._keys: list[bytes] = []

    def __getitem__(self, page: int) -> bytes:
        """Key of page `page`, all of whose tokens are known."""
        keys, size = self._keys, self._page_size
        for start in range(len(keys) * size, (page + 1) * size, size):
            content = self._pack(*self.tokens[start : start + size])
            keys.append(hashlib.blake2b((keys[-1] if keys else self.root) + content, digest_size=16).digest())
        return keys[page]

    def first(self, num_pages: int) -> list[bytes]:
        """Keys of the first `num_pages` pages."""
        if num_pages:
            self[num_pages - 1]
        return self._keys[:num_pages]

    def true_of(self, tokens: Sequence[int]) -> bool:
        """Whether what is known by now of the pages of these tokens is what computing it anew gives."""
        known = min(len(self._keys), len(tokens) // self._page_size)
        return PrefixKeys(self.root, tokens, self._page_size).first(known) == self._keys[:known]

    def cut(self, num_tokens: int) -> None:
        """Only the first `num_tokens` tokens stay as they are: forget the keys of what is behind them."""
        del self._keys[num_tokens // self._page_size :]

    def in_common(self, others: Sequence[bytes], at_most: int) -> int:
        """How many of the first `at_most` pages have these keys. A key stands for all before it: few are compared."""
        low, high = 0, min(len(others), at_most)
        if high and self[high - 1] == others[high - 1]:
            return high
        while low < high:
            middle = (low + high + 1) // 2
            if self[middle - 1] == others[middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low


def tokens_in_common(keys: PrefixKeys, others: Sequence[bytes], tail: Sequence[int], page_size: int) -> int:
    """How many tokens the list behind `keys` shares with another, given by the keys of its full pages and the tokens
    behind them. Whole pages, unless only the tail is left to differ."""
    known = len(keys.tokens)
    full = keys.in_common(others, known // page_size)
    if full < len(others):
        return full * page_size
    start = full * page_size
    same = 0
    while same < len(tail) and start + same < known and keys.tokens[start + same] == tail[same]:
        same += 1
    return start + same


def namespace_root(tenant: str, salt: str, *, shared: bool) -> bytes:
    """Seed of a chain of prefix keys: tenants do not share unless told to, and a salt narrows further (rule K3)."""
    scope = "" if shared else tenant
    named = f"{len(scope)}:{scope}{salt}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(named, digest_size=16).digest()


@cache
def _packer(page_size: int) -> Callable[..., bytes]:
    """A page's token ids as int32."""
    return struct.Struct(f"={page_size}i").pack
