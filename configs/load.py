"""YAML → frozen dataclasses. An unknown key, a wrong type or a wrong value is an error that names its path."""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from configs import quantization, ranks, rollout, scaling
from configs.edge import AuthConfig, IngressConfig, TenantLimits
from configs.schema import RemoraConfig
from configs.sessions import StoreConfig
from configs.workers import RUNNERS

T = TypeVar("T")

EVERY_TENANT = "*"
"""In `tenants`: the limits of those not named."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-_\[\]:]{1,255}")


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
    kind: Any = cls
    hints = _hints(kind)
    values = {}
    for key, value in _mapping(tree, path or "the file").items():
        at = f"{path}.{key}" if path else str(key)
        if key not in hints:
            known = ", ".join(sorted(hints))
            raise ConfigError(f"{at}: unknown setting; known here: {known}")
        values[key] = _convert(hints[key], value, at)
    missing = [name for name in _required(kind) if name not in values]
    if missing:
        raise ConfigError(f"{path or 'the file'}: {' and '.join(missing)} must be given")
    return cls(**values)


def to_tree(config: RemoraConfig) -> dict[str, Any]:
    """The inverse of `from_tree`: plain dicts, lists and scalars, ready for YAML, JSON or an actor's argument."""
    tree = dataclasses.asdict(config)
    for name in ("affinity_headers", "cors_origins"):
        tree["ingress"][name] = list(getattr(config.ingress, name))
    return tree


HAPROXY_HOSTS = ("127.0.0.1", "localhost", "0.0.0.0")


def check(config: RemoraConfig) -> RemoraConfig:
    """Refuse values that cannot work, with the path of the setting."""
    at_least = {
        "engine.kv_tokens": (config.engine.kv_tokens or 64, 64),
        "engine.page_size": (config.engine.page_size, 0),
        "engine.max_step_tokens": (config.engine.max_step_tokens, 1),
        "engine.mixed_prefill_tokens": (config.engine.mixed_prefill_tokens, 0),
        "engine.max_running": (config.engine.max_running, 1),
        "engine.max_waiting": (config.engine.max_waiting, 0),
        "hibernate.host_bytes": (config.hibernate.host_bytes, 0),
        "hibernate.disk_bytes": (config.hibernate.disk_bytes, 0),
        "workers.count": (config.workers.count, 1),
        "workers.threads": (config.workers.threads, 0),
        "ingress.replicas": (config.ingress.replicas, 1),
        "ingress.port": (config.ingress.port, 1),
    }
    for path, (value, least) in at_least.items():
        if value < least:
            raise ConfigError(f"{path}: {value} is too small; it must be at least {least}")
    if config.engine.mixed_prefill_tokens == 1:
        raise ConfigError(
            "engine.mixed_prefill_tokens: 1 would be the oldest prompt's alone; it must be 0, or at least 2"
        )
    check_edge(config.ingress)
    if config.engine.grammar_timeout_s <= 0:
        raise ConfigError(f"engine.grammar_timeout_s: {config.engine.grammar_timeout_s}; it must be above 0")
    if not 0 <= config.hibernate.below < 1:
        raise ConfigError(f"hibernate.below: {config.hibernate.below}; it must be at least 0 and below 1")
    if not config.engine.kv_tokens and not config.workers.num_gpus:
        raise ConfigError("engine.kv_tokens: 0 means what fits on a GPU, and workers.num_gpus is 0")
    if not 0 < config.engine.gpu_memory_share <= 1:
        raise ConfigError(
            f"engine.gpu_memory_share: {config.engine.gpu_memory_share}; it must be above 0 and at most 1"
        )
    if config.engine.depth not in (0, 1):
        raise ConfigError(f"engine.depth: {config.engine.depth}; it must be 0 or 1")
    if config.workers.runner not in RUNNERS:
        raise ConfigError(f"workers.runner: {config.workers.runner!r}; it must be one of {', '.join(RUNNERS)}")
    if config.model.dtype not in ("auto", "float32", "bfloat16", "float16"):
        raise ConfigError(f"model.dtype: {config.model.dtype!r}; it must be auto, float32, bfloat16 or float16")
    for complaint in quantization.complaints(config.model, config.workers):
        raise ConfigError(complaint)
    for name, known in (("tool_format", TOOL_FORMATS), ("reasoning", REASONING_FORMATS)):
        value = getattr(config.model, name)
        if value not in known:
            raise ConfigError(f"model.{name}: {value!r}; it must be one of {', '.join(known)}")
    if config.sessions.weights not in ("follow", "pin"):
        raise ConfigError(f"sessions.weights: {config.sessions.weights!r}; it must be 'follow' or 'pin'")
    for complaint in scaling.complaints(config.autoscale, config.rebalance, config.workers.count):
        raise ConfigError(complaint)
    for complaint in (*rollout.complaints(config.rollout), *ranks.complaints(config.workers)):
        raise ConfigError(complaint)
    check_store(config.store)
    check_auth(config.auth)
    check_tenants(config.tenants, "tenants")
    return config


TOOL_FORMATS = ("auto", "off", "hermes", "llama3", "mistral", "mistral_args", "qwen_xml")
REASONING_FORMATS = ("auto", "off", "think", "think_brackets")


def check_edge(ingress: IngressConfig) -> None:
    """Raises ConfigError."""
    if ingress.port > 65535:
        raise ConfigError(f"ingress.port: {ingress.port} is too large; it must be at most 65535")
    if ingress.max_header_bytes < 1024:
        raise ConfigError(f"ingress.max_header_bytes: {ingress.max_header_bytes}; it must be at least 1024")
    if ingress.body_timeout_s < 0:
        raise ConfigError(f"ingress.body_timeout_s: {ingress.body_timeout_s}; it must be 0 or more")
    if bool(ingress.tls_certificate) != bool(ingress.tls_key):
        raise ConfigError("ingress.tls_certificate and ingress.tls_key are given both or neither")
    if ingress.tls_certificate and ingress.haproxy:
        raise ConfigError("ingress.haproxy: Serve's HAProxy knows no TLS; end it in front of it")
    if ingress.haproxy and ingress.host not in HAPROXY_HOSTS:
        raise ConfigError(f"ingress.haproxy: it reaches ingresses at {', '.join(HAPROXY_HOSTS)}, not at {ingress.host}")
    for index, origin in enumerate(ingress.cors_origins):
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"ingress.cors_origins[{index}]: {origin!r} is no origin, such as https://chat.example.com"
            )


def check_store(store: StoreConfig) -> None:
    """Raises ConfigError."""
    for name in ("commit_timeout_s", "idempotency_ttl_s"):
        if getattr(store, name) <= 0:
            raise ConfigError(f"store.{name}: {getattr(store, name)}; it must be above 0")
    for name in ("max_session_bytes", "max_total_bytes", "max_result_bytes", "max_results_bytes"):
        if getattr(store, name) < 0:
            raise ConfigError(f"store.{name}: {getattr(store, name)}; it must be 0 or more")


def check_auth(auth: AuthConfig) -> None:
    """Raises ConfigError, which never repeats what was given for a key's hash: it may be the key itself."""
    if auth.stats_access not in ("admin", "key", "open"):
        raise ConfigError(f"auth.stats_access: {auth.stats_access!r}; it must be admin, key or open")
    if auth.reload_s < 0:
        raise ConfigError(f"auth.reload_s: {auth.reload_s}; it must be 0 or more")
    for index, entry in enumerate(auth.keys):
        check_key(entry, f"auth.keys[{index}]")


def check_key(entry: str, path: str) -> None:
    """Raises ConfigError unless this is TENANT:SHA256 or TENANT:SHA256:admin."""
    tenant, _, rest = entry.partition(":")
    sha256, colon, flag = rest.partition(":")
    if not rest or (colon and flag != "admin"):
        raise ConfigError(f"{path}: expected TENANT:SHA256 or TENANT:SHA256:admin")
    check_name(tenant, path)
    check_sha256(sha256, path)


def check_tenants(tenants: Mapping[str, TenantLimits], path: str) -> None:
    """Raises ConfigError for a limit below 0 or a name that no tenant can have."""
    for tenant, limits in tenants.items():
        if tenant != EVERY_TENANT:
            check_name(tenant, path)
        for name, value in dataclasses.asdict(limits).items():
            if value < 0:
                raise ConfigError(f"{path}.{tenant}.{name}: {value}; it must be 0 or more")
        if limits.weight and not 1 / MOST_WEIGHT <= limits.weight <= MOST_WEIGHT:
            raise ConfigError(f"{path}.{tenant}.weight: {limits.weight}; it must be 0, or 0.001 to 1000")


MOST_WEIGHT = 1000.0


def check_name(name: str, path: str) -> None:
    """Names of tenants and keys are fit for logs as they are. Raises ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{path}: a name is 1 to 64 of the characters A-Z a-z 0-9 . _ -")


def check_sha256(digest: str, path: str) -> None:
    """Raises ConfigError."""
    if not _SHA256.fullmatch(digest):
        raise ConfigError(f"{path}: a key is given by its SHA-256 in 64 lower-case hex digits, never as it is")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


@functools.cache
def _required(cls: type) -> list[str]:
    nothing = dataclasses.MISSING
    fields = dataclasses.fields(typing.cast(Any, cls))
    return [field.name for field in fields if field.default is nothing and field.default_factory is nothing]


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
    if typing.get_origin(hint) is dict:
        item = typing.get_args(hint)[1]
        return {str(name): _convert(item, each, f"{path}.{name}") for name, each in _mapping(value, path).items()}
    if typing.get_origin(hint) is tuple:
        return _convert_list(typing.get_args(hint)[0], value, path)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{path}: expected {hint.__name__}, got {value!r}")
    return value


def _convert_list(item: Any, value: object, path: str) -> tuple[object, ...]:
    if dataclasses.is_dataclass(item):
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{path}: expected a list, got {type(value).__name__}")
        return tuple(_convert(item, each, f"{path}[{index}]") for index, each in enumerate(value))
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        raise ConfigError(f"{path}: expected a list of strings")
    return tuple(value)
