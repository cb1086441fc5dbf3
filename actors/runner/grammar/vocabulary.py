"""The model's tokens as llguidance wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class _Tokens:
    """What `llguidance.TokenizerWrapper` asks of a tokeniser. Tokens without text are marked as special: no grammar
    over text allows them."""

    bos_token_id = None

    def __init__(self, vocab_bytes: Sequence[bytes], eos_ids: Sequence[int]) -> None:
        self.eos_token_id = eos_ids[0]
        self.tokens = [text or b"\xff<|%d|>" % token for token, text in enumerate(vocab_bytes)]
        self.special_token_ids = [token for token, text in enumerate(vocab_bytes) if not text]
        self._ids: dict[bytes, int] = {}
        for token, text in enumerate(vocab_bytes):
            if text:
                self._ids.setdefault(text, token)
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes | str) -> list[int]:
        """The longest token first. The library asks for texts that a grammar leaves no choice about."""
        data = text.encode() if isinstance(text, str) else bytes(text)
        ids: list[int] = []
        at = 0
        while at < len(data):
            token, length = self._longest_at(data, at)
            ids.append(token)
            at += length
        return ids

    def _longest_at(self, data: bytes, at: int) -> tuple[int, int]:
        for length in range(min(self._longest, len(data) - at), 0, -1):
            token = self._ids.get(data[at : at + length])
            if token is not None:
                return token, length
        raise ValueError(f"no token stands for byte {data[at]}")


def library_tokenizer(vocab_bytes: Sequence[bytes], eos_ids: frozenset[int]) -> Any:
    """An `llguidance.LLTokenizer`. Takes some 0.2 s for 50,000 tokens."""
    import llguidance

    ends = sorted(eos_ids)
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Tokens(vocab_bytes, ends)), eos_token=ends)
