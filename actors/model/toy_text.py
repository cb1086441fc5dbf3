"""The text of the toy runner: one token per byte, ChatML's control tokens behind them, and ChatML as chat template."""

from __future__ import annotations

from typing import Any

from actors.model.chat_template import ChatTemplate
from actors.model.tokenizer import Tokenizer
from actors.model.tokenizer_files import TokenizerFiles

_CONTROLS = ("<|pad|>", "<|im_end|>", "<|im_start|>", "<|endoftext|>")
"""Ids 256 and up, in this order: `<|im_end|>` is the toy runner's EOS."""


def toy_text() -> tuple[Tokenizer, ChatTemplate]:
    """As `load_text`, without a folder."""
    tokenizer = Tokenizer(
        TokenizerFiles(
            tokenizer=_tokenizer_json(),
            special_names={"eos_token": "<|im_end|>"},
            bos_id=None,
            adds_bos=False,
            eos_ids=frozenset({257}),
            vocab_size=256 + len(_CONTROLS),
            templates={},
        )
    )
    return tokenizer, ChatTemplate(tokenizer)


def _tokenizer_json() -> dict[str, Any]:
    added = [
        {
            "id": 256 + number,
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, name in enumerate(_CONTROLS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {character: byte for byte, character in enumerate(_byte_characters())},
            "merges": [],
        },
    }


def _byte_characters() -> list[str]:
    """The printable character that byte-level BPE writes for each byte (Radford et al. 2019, GPT-2's encoder)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
