"""Text <-> token ids (rule I1: what a user writes is text and never control). Needs nothing but `tokenizers`.

A tokenizer's *control tokens* are its added tokens: they are found in text as a whole and mean something to the model
(`<|im_end|>`, and `<tool_call>` too, whether or not the file calls it special). Added tokens that are only blanks
are a way of spelling text, and no control tokens.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from actors.model.errors import ModelUnusable
from actors.model.text_encoders import after_control, as_text, build, with_controls, within_text
from actors.model.token_bytes import token_bytes
from actors.model.tokenizer_files import TokenizerFiles, read_files

Span = tuple[int, int]
"""Start and end (exclusive) of characters in a string."""

_KNOWN_ENDS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "</s>",
    "<|end|>",
    "<end_of_turn>",
)
"""Special tokens that end a reply in every model that has them, listed in its configs or not."""


class Tokenizer:
    """Loaded once, used from any thread: nothing here changes after construction.

    `eos_ids`: every token that ends a reply. `bos_id`: the beginning of a text; None if neither plain text nor a chat
    begins with it, whatever the files call BOS (SmolLM2's is the token that opens every message). `adds_bos`: whether
    plain text (not a chat) is to begin with it. `vocab_size`: ids run from 0 to below this.
    `special_names`: the texts of bos_token, eos_token and so on, as chat templates know them.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        spec = files.tokenizer
        model = spec.get("model") or {}
        if model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
            raise ModelUnusable("only BPE tokenizers are supported (byte-level, or SentencePiece with byte fallback)")
        added = [token for token in spec.get("added_tokens") or [] if token["content"].strip()]
        self._controls: dict[str, dict[str, Any]] = {token["content"]: token for token in added}
        specials = [token for token in added if token.get("special")]
        self._special_text = {int(token["id"]): token["content"].encode() for token in specials}
        self.control_pattern = _pattern(added)
        self.special_pattern = _pattern(specials)
        self._full = with_controls(spec, self._controls)
        text = as_text(spec, self._controls)
        self._plain = build(text)
        self._after_control = _variant(text, after_control(text), self._plain)
        self._within_text = _variant(text, within_text(text), self._plain)
        self._bytes = token_bytes(spec, files.vocab_size)
        self.vocab_size = len(self._bytes)
        self.special_names = dict(files.special_names)
        self.templates = dict(files.templates)
        named_bos = self.control_id(files.special_names.get("bos_token", ""))
        bos = files.bos_id if named_bos is None else named_bos
        self.adds_bos = bos is not None and (self._starts_with(bos) if files.adds_bos is None else files.adds_bos)
        self.bos_id = bos if self.adds_bos or "bos_token" in files.templates.get("default", "") else None
        named = [files.special_names.get("eos_token", ""), *(end for end in _KNOWN_ENDS if self._is_special(end))]
        found = {self.control_id(name) for name in named} | files.eos_ids
        self.eos_ids: frozenset[int] = frozenset(token_id for token_id in found if token_id is not None)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Tokenizer:
        """Raises ModelUnusable."""
        try:
            return cls(read_files(Path(folder)))
        except ModelUnusable as error:
            raise ModelUnusable(f"{os.fspath(folder)}: {error}") from error

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The ids of a text, BOS not included. Control tokens spelled out in it are text unless `special` is set.

        Lone surrogates, which are not text, become U+FFFD.
        """
        encoder = self._full if special else self._plain
        return encoder.encode(valid_text(text), add_special_tokens=False).ids

    def encode_prompt(self, text: str) -> list[int]:
        """The ids of a text that stands alone: with BOS in front where the model wants one."""
        start = [self.bos_id] if self.adds_bos and self.bos_id is not None else []
        return start + self.encode(text)

    def encode_template(self, rendered: str, literal: Sequence[Span] = (), *, continued: bool = False) -> list[int]:
        """The ids of a rendered chat template: control tokens in it are control, but not inside `literal` spans
        (ascending, disjoint; `rendered` must then be valid text).

        `continued`: this text goes on with other text, so nothing is put in front of its first word.
        """
        if not literal and not continued:
            return self._full.encode(valid_text(rendered), add_special_tokens=False).ids
        ids: list[int] = []
        start = 0
        encoder = self._within_text if continued else self._plain
        for begin, end, token_id in self._control_tokens(rendered, literal):
            ids += _encode_piece(encoder, rendered[start : max(start, begin)])
            ids.append(token_id)
            start = end
            encoder = self._after_control
        return ids + _encode_piece(encoder, rendered[start:])

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of these tokens, exactly as `Detokenizer` gives it piece by piece. Unknown ids have no text."""
        data = bytearray()
        for token_id in ids:
            if not skip_special and token_id in self._special_text:
                data += self._special_text[token_id]
            elif 0 <= token_id < self.vocab_size:
                data += self._bytes[token_id]
        return data.decode("utf-8", "replace")

    def vocab_bytes(self) -> tuple[bytes, ...]:
        """The bytes each token stands for in a text; empty for special tokens and for ids that no token has."""
        return self._bytes

    def spelled(self, token_id: int) -> bytes:
        """The bytes of one token, control tokens as they are spelled. Unknown ids have none."""
        if token_id in self._special_text:
            return self._special_text[token_id]
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def control_id(self, text: str) -> int | None:
        """The id of the control token spelled `text`, None if there is none."""
        token = self._controls.get(text)
        return None if token is None else int(token["id"])

    @property
    def control_names(self) -> list[str]:
        """The control tokens as they are spelled."""
        return sorted(self._controls)

    def _is_special(self, text: str) -> bool:
        return bool(self._controls.get(text, {}).get("special"))

    def _starts_with(self, bos: int) -> bool:
        """Whether tokenizer.json itself puts this token before plain text."""
        return self._full.encode("", add_special_tokens=True).ids[:1] == [bos]

    def _control_tokens(self, text: str, literal: Sequence[Span]) -> Iterator[tuple[int, int, int]]:
        """(start, end, id) of the control tokens outside the `literal` spans, with the blanks that they swallow."""
        gaps = zip([0, *(end for _, end in literal)], [*(begin for begin, _ in literal), len(text)], strict=True)
        for gap_start, gap_end in gaps:
            for match in self.control_pattern.finditer(text, gap_start, gap_end):
                token = self._controls[match.group()]
                begin, end = match.span()
                if token.get("lstrip"):
                    begin = gap_start + len(text[gap_start:begin].rstrip())
                if token.get("rstrip"):
                    end = gap_end - len(text[end:gap_end].lstrip())
                yield begin, end, int(token["id"])


def valid_text(text: str) -> str:
    """`text` with halves of characters joined where both are there, and replaced by U+FFFD where one is missing."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _pattern(tokens: list[dict[str, Any]]) -> re.Pattern[str]:
    """Finds the leftmost, and there the longest, of these tokens; nothing when there are none."""
    longest_first = sorted(tokens, key=lambda token: len(token["content"]), reverse=True)
    choices = []
    for token in longest_first:
        choice = re.escape(token["content"])
        choices.append(rf"(?<!\w){choice}(?!\w)" if token.get("single_word") else choice)
    return re.compile("|".join(choices) if choices else r"(?!)")


def _variant(spec: dict[str, Any], changed: dict[str, Any], same: Any) -> Any:
    """A tokenizer for `changed`, or `same` where it would be no different: they are large."""
    return same if changed == spec else build(changed)


def _encode_piece(encoder: Any, text: str) -> list[int]:
    return encoder.encode(text, add_special_tokens=False).ids if text else []
