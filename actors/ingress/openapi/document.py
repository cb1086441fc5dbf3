"""The files of the document put together."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]


@cache
def document() -> Json:
    """The whole document; do not change it. Raises ValueError when two files say the same thing."""
    folder = Path(__file__).parent
    merged: Json = _read(folder / "base.yaml")
    merged["paths"] = {}
    for file in sorted(folder.glob("*.yaml")):
        if file.name != "base.yaml":
            part = _read(file)
            _add(merged["paths"], part.get("paths", {}), file)
            _add(merged["components"]["schemas"], part.get("components", {}).get("schemas", {}), file)
    return merged


def _read(file: Path) -> Json:
    tree: Json = yaml.safe_load(file.read_text(encoding="utf-8"))
    return tree


def _add(into: Json, more: Json, file: Path) -> None:
    for name, value in more.items():
        if name in into:
            raise ValueError(f"{file.name} says again what {name!r} is")
        into[name] = value
