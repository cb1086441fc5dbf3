"""GGUF metadata -> `tokenizer.json` and `tokenizer_config.json` (as dicts).

Two kinds of tokenizer cover the Llama family: byte-level BPE (`gpt2` in GGUF: SmolLM, Qwen, Llama 3, Mistral Nemo)
and SentencePiece with byte fallback (`llama` in GGUF: Llama 2, Mistral).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from actors.model.errors import ModelUnusable
from actors.model.gguf_file import GgufFile
from actors.model.pretokenizers import byte_level_normalizer, byte_level_split

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # tokenizer.ggml.token_type


@dataclass(frozen=True, slots=True)
class GgufVocab:
    """The token list of a GGUF file. `types` has one entry per token."""

    tokens: list[str]
    types: list[int]
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None

    def name(self, token_id: int | None) -> str | None:
        return None if token_id is None else self.tokens[token_id]

    def in_model(self) -> dict[str, int]:
        """What BPE may look up: all but the filler entries that pad the embedding."""
        return {token: i for i, token in enumerate(self.tokens) if self.types[i] != _UNUSED}

    def added(self) -> list[dict[str, Any]]:
        """Tokens that are found in text as a whole, before BPE sees it."""
        whole = {i for i, kind in enumerate(self.types) if kind in (_CONTROL, _USER_DEFINED)}
        if self.unk_id is not None and self.types[self.unk_id] == _UNKNOWN:
            whole.add(self.unk_id)
        return [self._added(i) for i in sorted(whole)]

    def _added(self, token_id: int) -> dict[str, Any]:
        return {
            "id": token_id,
            "content": self.tokens[token_id],
            "special": self.types[token_id] != _USER_DEFINED,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }


def read_vocab(file: GgufFile) -> GgufVocab:
    """Raises ModelUnusable when the file has no tokenizer, or its ids point nowhere."""
    tokens = file.get("tokenizer.ggml.tokens", list, [])
    if not tokens:
        raise ModelUnusable(f"{file.path}: the GGUF file has no tokenizer (tokenizer.ggml.tokens)")
    types = file.get("tokenizer.ggml.token_type", list, [_NORMAL] * len(tokens))
    ids: dict[str, int | None] = {}
    for name in ("bos", "eos", "unknown", "padding"):
        key = f"tokenizer.ggml.{name}_token_id"
        value = file.get(key, int, -1)
        if value >= len(tokens):
            raise ModelUnusable(f"{file.path}: {key} is {value}, but there are {len(tokens)} tokens")
        ids[name] = value if value >= 0 else None
    if len(types) != len(tokens):
        raise ModelUnusable(f"{file.path}: {len(tokens)} tokens, but {len(types)} token types")
    return GgufVocab(tokens, types, ids["bos"], ids["eos"], ids["unknown"], ids["padding"])


def tokenizer_json(file: GgufFile, vocab: GgufVocab) -> dict[str, Any]:
    """The `tokenizer.json` of the file, checked by loading it. Raises ModelUnusable."""
    kind = file.need("tokenizer.ggml.model", str)
    if kind == "gpt2":
        parts = _byte_level(file, vocab)
    elif kind == "llama":
        parts = _sentencepiece(file, vocab)
    else:
        raise ModelUnusable(f"{file.path}: tokenizer {kind!r} is not supported (supported: gpt2, llama)")
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": vocab.added(), **parts}


def check_loads(file: GgufFile, encoded: str) -> None:
    """Raise ModelUnusable unless the tokenizers library takes this `tokenizer.json`."""
    try:
        Tokenizer.from_str(encoded)
    except Exception as error:  # the library raises plain Exception
        raise ModelUnusable(f"{file.path}: its tokenizer is inconsistent: {error}") from error


def tokenizer_config(file: GgufFile, vocab: GgufVocab) -> dict[str, Any]:
    """The `tokenizer_config.json` of the file. The chat template is written beside it, not into it."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": adds_bos(file, vocab),
        "model_max_length": file.need("{arch}.context_length", int),
    }
    named = {"bos_token": vocab.bos_id, "eos_token": vocab.eos_id, "unk_token": vocab.unk_id, "pad_token": vocab.pad_id}
    config.update({key: vocab.name(token_id) for key, token_id in named.items() if token_id is not None})
    return config


def adds_bos(file: GgufFile, vocab: GgufVocab) -> bool:
    """Whether plain text is to begin with BOS. Files that do not say: SentencePiece and Llama 3 do."""
    default = (
        file.need("tokenizer.ggml.model", str) == "llama" or file.get("tokenizer.ggml.pre", str, "") == "llama-bpe"
    )
    return file.get("tokenizer.ggml.add_bos_token", bool, default) and vocab.bos_id is not None


def _byte_level(file: GgufFile, vocab: GgufVocab) -> dict[str, Any]:
    merges = file.get("tokenizer.ggml.merges", list, [])
    if not merges:
        raise ModelUnusable(f"{file.path}: the byte-level BPE tokenizer has no merges")
    pre = file.get("tokenizer.ggml.pre", str, "default")
    if pre == "default" and file.architecture in ("qwen2", "qwen3"):
        pre = "qwen2"  # files from before `tokenizer.ggml.pre` existed
    split = byte_level_split(pre)
    if split is None:
        raise ModelUnusable(f"{file.path}: pre-tokenizer {pre!r} is not supported")
    return {
        "normalizer": byte_level_normalizer(pre),
        "pre_tokenizer": split,
        "post_processor": _post_processor(file, vocab),
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in ("llama-bpe", "tekken"),
            "vocab": vocab.in_model(),
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }


def _sentencepiece(file: GgufFile, vocab: GgufVocab) -> dict[str, Any]:
    scores = file.need("tokenizer.ggml.scores", list)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    restore = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    decoders: list[dict[str, Any]] = [restore, {"type": "ByteFallback"}, {"type": "Fuse"}]
    normalizers: list[dict[str, Any]] = [replace]
    if file.get("tokenizer.ggml.add_space_prefix", bool, True):
        normalizers.insert(0, {"type": "Prepend", "prepend": "▁"})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": _post_processor(file, vocab),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": vocab.name(vocab.unk_id),
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab.in_model(),
            "merges": merges_from_scores(vocab, scores),
        },
    }


def merges_from_scores(vocab: GgufVocab, scores: list[float]) -> list[list[str]]:
    """The merges that make BPE take the steps SentencePiece takes: best-scored piece first.

    Every way to cut a piece into two pieces is a merge. Among the cuts of one piece, and among pieces of equal
    score, the order is that of the ids of the parts, and longer parts first, as Hugging Face converts these models.
    """
    ids = {token: i for i, token in enumerate(vocab.tokens) if vocab.types[i] in (_NORMAL, _USER_DEFINED)}
    found: list[tuple[float, str, str]] = []
    for piece, token_id in ids.items():
        cuts = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [(left, right) for left, right in cuts if left in ids and right in ids]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        found.extend((scores[token_id], left, right) for left, right in known)
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [[left, right] for _, left, right in found]


def _post_processor(file: GgufFile, vocab: GgufVocab) -> dict[str, Any] | None:
    """Puts BOS before plain text where the model was trained so."""
    if not adds_bos(file, vocab):
        return None
    bos = vocab.name(vocab.bos_id)
    sequence_a, sequence_b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    start = {"SpecialToken": {"id": bos, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [start, sequence_a],
        "pair": [start, sequence_a, start, sequence_b],
        "special_tokens": {bos: {"id": bos, "ids": [vocab.bos_id], "tokens": [bos]}},
    }
