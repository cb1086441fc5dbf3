"""Variants of one tokenizer.json as `tokenizers` objects: which control tokens they see, and what they take the text
before them to be."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection
from typing import Any

import tokenizers

from actors.model.errors import ModelUnusable


def with_controls(spec: dict[str, Any], controls: Collection[str]) -> tokenizers.Tokenizer:
    """Finds control tokens in text.

    They are looked for in the text as it is written, not as it is normalised: what is a control token can then be
    told by searching for it.
    """
    added = spec.get("added_tokens") or []
    return build({**spec, "added_tokens": [_raw(token) if token["content"] in controls else token for token in added]})


def as_text(spec: dict[str, Any], controls: Collection[str]) -> dict[str, Any]:
    """The tokenizer that can never make a control token, whatever the text."""
    model = dict(spec["model"])
    merges = [pair for pair in model.get("merges") or [] if "".join(_parts(pair)) not in controls]
    used = {part for pair in merges for part in _parts(pair)}
    if model.get("ignore_merges"):  # such a model also takes whole words from its vocabulary
        model["vocab"] = {text: i for text, i in model["vocab"].items() if text not in controls or text in used}
    added = [token for token in spec.get("added_tokens") or [] if token["content"] not in controls]
    return {**spec, "added_tokens": added, "model": {**model, "merges": merges}, "post_processor": None}


def after_control(spec: dict[str, Any]) -> dict[str, Any]:
    """For text behind a control token: no blank in front of it, where only the very first word gets one."""
    return _walk(spec, lambda step: {**step, "prepend_scheme": "never"} if _first_only(step) else step)


def within_text(spec: dict[str, Any]) -> dict[str, Any]:
    """For text that goes on with other text: no blank in front of it at all."""

    def change(step: dict[str, Any]) -> dict[str, Any] | None:
        if step.get("type") == "Prepend":
            return None
        if step.get("type") == "Metaspace":
            return {**step, "prepend_scheme": "never"}
        if step.get("type") == "ByteLevel":
            return {**step, "add_prefix_space": False}
        return step

    return _walk(spec, change)


def build(spec: dict[str, Any]) -> tokenizers.Tokenizer:
    """Raises ModelUnusable."""
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(spec))
    except Exception as error:  # the library raises plain Exception
        raise ModelUnusable(f"tokenizer.json is not understood: {error}") from error


def _raw(token: dict[str, Any]) -> dict[str, Any]:
    return {**token, "normalized": False}


def _parts(pair: Any) -> list[str]:
    """A merge is a list of two pieces, or in older files the two with a blank between."""
    return pair.split(" ", 1) if isinstance(pair, str) else pair


def _first_only(step: dict[str, Any]) -> bool:
    return step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first"


def _walk(spec: dict[str, Any], change: Any) -> dict[str, Any]:
    """Apply `change` to every normalizer and pre-tokenizer; a step that becomes None is left out."""
    changed = dict(spec)
    for part in ("normalizer", "pre_tokenizer"):
        step = copy.deepcopy(spec.get(part))
        if step is None:
            continue
        for key in ("normalizers", "pretokenizers"):
            if key in step:
                step[key] = [new for inner in step[key] if (new := change(inner)) is not None]
        changed[part] = change(step)
    return changed
