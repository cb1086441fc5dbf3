"""Small tokenizers and chat templates of the three families, built here; nothing is downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. Hello world, how are you today? I am fine, thank you.",
    "Grüße aus München: äöü ß. user assistant system tool name content im_start im_end <|im_| end|> [INST] [/INST]",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 23))  \t# 456 7890 ",
    "日本語のテキスト и русский текст 🎉🎊",
] * 3

CHATML = (
    "{%- for message in messages %}{%- if loop.first and message.role != 'system' %}"
    "{{- '<|im_start|>system\nBe kind.<|im_end|>\n' }}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
LLAMA3 = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{- message['content'] | trim + '<|eot_id|>' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)

FAMILIES: dict[str, dict[str, Any]] = {
    "chatml": {
        "template": CHATML,
        "special": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        "plain_added": ["<think>", "</think>", "<tool_call>"],
        "names": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": False},
        "end": "<|im_end|>",
    },
    "llama3": {
        "template": LLAMA3,
        "special": ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "plain_added": [],
        "names": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        "end": "<|eot_id|>",
    },
    "mistral": {
        "template": MISTRAL,
        "special": ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"],
        "plain_added": [],
        "names": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True},
        "end": "</s>",
    },
}


def train_byte_level(special: list[str], plain_added: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[AddedToken(text, normalized=False, special=True) for text in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in plain_added])
    return tokenizer


def sentencepiece_spec(special: list[str], *, first_word: str) -> dict[str, Any]:
    """A SentencePiece-like tokenizer.json. `first_word`: `prepend` (older files: a normalizer) or `metaspace`."""
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    pieces += sorted({character for text in CORPUS[:2] for character in text if character != " "})
    merges: list[list[str]] = []
    for word in ("▁the", "▁Hello", "▁world", "▁quick", "▁INST", "INST", "▁you", "▁im", "end"):
        for end in range(2, len(word) + 1):
            if word[:end] not in pieces:
                pieces.append(word[:end])
                merges.append([word[: end - 1], word[end - 1 : end]])
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    restore = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    prepend = {"type": "Prepend", "prepend": "▁"}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": text, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for i, text in enumerate(special)
        ],
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]} if first_word == "prepend" else None,
        "pre_tokenizer": None if first_word == "prepend" else meta,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [restore, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": merges,
        },
    }


def write_folder(folder: Path, tokenizer: str, names: dict[str, Any], template: str | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "config.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with tokenizer and chat template: a family, or `mistral-prepend` / `mistral-metaspace` for a
    SentencePiece tokenizer."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            family, _, first_word = name.partition("-")
            spec = FAMILIES[family]
            if first_word:
                encoded = json.dumps(sentencepiece_spec(spec["special"], first_word=first_word))
            else:
                encoded = train_byte_level(spec["special"], spec["plain_added"]).to_str()
            made[name] = write_folder(tmp_path_factory.mktemp(name), encoded, spec["names"], spec["template"])
        return made[name]

    return make
