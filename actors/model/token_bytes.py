"""The bytes each token of a vocabulary stands for."""

from __future__ import annotations

import json
import re
from typing import Any

_BYTE_PIECE = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")


def token_bytes(spec: dict[str, Any], vocab_size: int) -> tuple[bytes, ...]:
    """One entry per id below `vocab_size`, or below the highest id of `spec` (a tokenizer.json) if that is more.

    Special tokens, and ids that no token has, stand for nothing: b"".
    """
    vocab: dict[str, int] = spec["model"]["vocab"]
    added: list[dict[str, Any]] = spec.get("added_tokens") or []
    highest = max([*vocab.values(), *(int(token["id"]) for token in added)], default=-1)
    table = [b""] * max(vocab_size, highest + 1)
    byte_level = _is_byte_level(spec)
    piece_bytes = _byte_level if byte_level else _sentencepiece
    added_bytes = str.encode if byte_level else _sentencepiece  # only the latter writes blanks its own way there, too
    for piece, token_id in vocab.items():
        table[token_id] = piece_bytes(piece)
    for token in added:
        table[int(token["id"])] = b"" if token.get("special") else added_bytes(token["content"])
    return tuple(table)


def _is_byte_level(spec: dict[str, Any]) -> bool:
    """Whether pieces are written in the alphabet that names every byte by a printable character."""
    return '"ByteLevel"' in json.dumps([spec.get("decoder"), spec.get("pre_tokenizer")])


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's names of the bytes: printable Latin-1 characters name themselves, the others come after U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level(piece: str) -> bytes:
    try:
        return bytes(map(_ALPHABET.__getitem__, piece))
    except KeyError:  # a piece that is not written in the alphabet is plain text
        return piece.encode()


def _sentencepiece(piece: str) -> bytes:
    match = _BYTE_PIECE.match(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace("▁", " ").encode()
