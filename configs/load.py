"""YAML → frozen dataclasses. An unknown key, a wrong type or a wrong value is an error that names its path."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from configs.schema import RemoraConfig

T = TypeVar("T")


class ConfigError(ValueError):
    """A setting that cannot be used. The message starts with the setting's path, e.g. `engine.page_size`."""


def load(path: str | Path | None = None, overrides: Mapping[str, object] | None = None) -> RemoraConfig:
    """Read a YAML file (None: defaults) and apply `overrides` (`{"workers.count": 2}`) on top.

    Raises ConfigError for anything that is not a known setting of the right type, and OSError for a file that cannot
    be read.
    """
    tree: dict[str, Any] = {}
    if path is not None:
        try:
            loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ConfigError(f"{path}: not valid YAML: {error}") from error
        if loaded is not None:
            tree = _mapping(loaded, str(path))
    for dotted, value in (overrides or {}).items():
        _put(tree, dotted, value)
    return check(from_tree(RemoraConfig, tree))


def from_tree(cls: type[T], tree: object, path: str = "") -> T:
    """Build dataclass `cls` from nested mappings."""
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in _mapping(tree, path or "the file").items():
        at = f"{path}.{key}" if path else str(key)
        if key not in hints:
            known = ", ".join(sorted(hints))
            raise ConfigError(f"{at}: unknown setting; known here: {known}")
        values[key] = _convert(hints[key], value, at)
    return cls(**values)


def to_tree(config: RemoraConfig) -> dict[str, Any]:
    """The inverse of `from_tree`: plain dicts, lists and scalars, ready for YAML, JSON or an actor's argument."""
    tree = dataclasses.asdict(config)
    tree["ingress"]["affinity_headers"] = list(config.ingress.affinity_headers)
    return tree


def check(config: RemoraConfig) -> RemoraConfig:
    """Refuse values that cannot work, with the path of the setting."""
    at_least = {
        "engine.kv_tokens": (config.engine.kv_tokens, 64),
        "engine.page_size": (config.engine.page_size, 0),
        "engine.max_step_tokens": (config.engine.max_step_tokens, 1),
        "engine.max_running": (config.engine.max_running, 1),
        "engine.max_waiting": (config.engine.max_waiting, 0),
        "workers.count": (config.workers.count, 1),
        "workers.threads": (config.workers.threads, 0),
        "ingress.replicas": (config.ingress.replicas, 1),
        "ingress.port": (config.ingress.port, 1),
    }
    for path, (value, least) in at_least.items():
        if value < least:
            raise ConfigError(f"{path}: {value} is too small; it must be at least {least}")
    if config.ingress.port > 65535:
        raise ConfigError(f"ingress.port: {config.ingress.port} is too large; it must be at most 65535")
    if config.engine.grammar_timeout_s <= 0:
        raise ConfigError(f"engine.grammar_timeout_s: {config.engine.grammar_timeout_s}; it must be above 0")
    if config.engine.depth not in (0, 1):
        raise ConfigError(f"engine.depth: {config.engine.depth}; it must be 0 or 1")
    if config.workers.runner not in ("torch", "toy"):
        raise ConfigError(f"workers.runner: {config.workers.runner!r}; it must be 'torch' or 'toy'")
    if config.model.dtype not in ("auto", "float32", "bfloat16", "float16"):
        raise ConfigError(f"model.dtype: {config.model.dtype!r}; it must be auto, float32, bfloat16 or float16")
    return config


def _mapping(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: expected settings by name, got {type(value).__name__}")
    return dict(value)


def _put(tree: dict[str, Any], dotted: str, value: object) -> None:
    *sections, name = dotted.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[name] = value


def _convert(hint: Any, value: object, path: str) -> object:
    if dataclasses.is_dataclass(hint):
        return from_tree(typing.cast(type, hint), value, path)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{path}: expected a list of strings")
        return tuple(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{path}: expected {hint.__name__}, got {value!r}")
    return value
