"""What a model folder says about its tokenizer, besides how it cuts text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.model.errors import ModelUnusable

_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """`tokenizer`: the content of tokenizer.json. `special_names`: the texts of bos_token, eos_token and so on.

    `bos_id`: from the model's config, for folders that do not name bos_token. `adds_bos`: None when no file says.
    `eos_ids`: as the configs list them. `vocab_size`: rows of the embedding, 0 if unknown.
    `templates`: chat templates by name (`default`, maybe `tool_use`).
    """

    tokenizer: dict[str, Any]
    special_names: dict[str, str]
    bos_id: int | None
    adds_bos: bool | None
    eos_ids: frozenset[int]
    vocab_size: int
    templates: dict[str, str]


def read_files(folder: Path) -> TokenizerFiles:
    """Raises ModelUnusable when tokenizer.json is missing or a file is not JSON."""
    if not (folder / "tokenizer.json").is_file():
        raise ModelUnusable(f"{folder} has no tokenizer.json")
    settings = _json(folder / "tokenizer_config.json")
    model = _json(folder / "config.json")
    generation = _json(folder / "generation_config.json")
    names = {**_json(folder / "special_tokens_map.json"), **settings}
    adds_bos = settings.get("add_bos_token")
    bos_id = None if "bos_token" in settings else model.get("bos_token_id")
    return TokenizerFiles(
        tokenizer=_json(folder / "tokenizer.json"),
        special_names={key: text for key in _NAMES if (text := _content(names.get(key))) is not None},
        bos_id=bos_id if isinstance(bos_id, int) else None,
        adds_bos=adds_bos if isinstance(adds_bos, bool) else None,
        eos_ids=_ids(generation.get("eos_token_id")) | _ids(model.get("eos_token_id")),
        vocab_size=int(model.get("vocab_size") or 0),
        templates=_templates(folder, settings.get("chat_template")),
    )


def _templates(folder: Path, configured: Any) -> dict[str, str]:
    """chat_template.jinja wins over what tokenizer_config.json holds: one template, or a list of named ones."""
    found: dict[str, str] = {}
    if isinstance(configured, str):
        found["default"] = configured
    elif isinstance(configured, list):
        found = {item["name"]: item["template"] for item in configured}
    single = folder / "chat_template.jinja"
    if single.is_file():
        found["default"] = single.read_text(encoding="utf-8")
    return found


def _content(value: Any) -> str | None:
    """A special token is written as its text, or as an object that holds it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _ids(value: Any) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(token_id for token_id in values if isinstance(token_id, int))


def _json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when there is no such file (all but tokenizer.json are optional)."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelUnusable(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelUnusable(f"{path} is not a JSON object")
    return value
