"""How byte-level BPE models cut text into words before merging: llama.cpp's names -> `tokenizers` JSON."""

from __future__ import annotations

from typing import Any

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_BY_REGEX = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}
_GPT2 = {"gpt-2", "default"}
_GPT2_WITH_SINGLE_DIGITS = {"smollm", "starcoder", "refact", "command-r"}


def byte_level_split(pre: str) -> dict[str, Any] | None:
    """The pre-tokenizer that llama.cpp calls `pre`; None when it is not known here."""
    if pre in _GPT2:
        return _byte_level(use_regex=True)
    if pre in _GPT2_WITH_SINGLE_DIGITS:
        return _sequence({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True))
    if pre in _BY_REGEX:
        split = {"type": "Split", "pattern": {"Regex": _BY_REGEX[pre]}, "behavior": "Isolated", "invert": False}
        return _sequence(split, _byte_level(use_regex=False))
    return None


def byte_level_normalizer(pre: str) -> dict[str, Any] | None:
    """Qwen composes characters (NFC) before anything else; the others take text as it comes."""
    return {"type": "NFC"} if pre == "qwen2" else None


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}
