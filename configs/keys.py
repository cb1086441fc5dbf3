"""API keys: what the keys file says, and what is kept of a key.

    keys:
      - {name: web, tenant: acme, sha256: "9f86d0…"}
      - {name: ops, tenant: operations, sha256: "2c26b4…", admin: true}
    tenants:
      acme: {requests_per_minute: 600, tokens_per_minute: 200000, concurrent_requests: 8, sessions: 500}
      "*": {requests_per_minute: 60}

YAML, or JSON, which is read a hundred times as fast: better for thousands of keys. A key itself is stored nowhere: it
is random with 256 bits, so that its plain SHA-256 gives nothing away.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from configs.edge import AuthConfig, TenantLimits
from configs.load import ConfigError, check_key, check_name, check_sha256, check_tenants, from_tree

KEYS_VARIABLE = "REMORA_API_KEYS"
PREFIX = "rmk-"
_SECRET = re.compile(r"[A-Za-z0-9_+/=-]{24,}")
"""Longer than any word of ours: what may be a key, written where it should not be."""
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One key. `name` is for people and logs; `sha256` is lower-case hex; `admin` opens operators' calls."""

    name: str
    tenant: str
    sha256: str
    admin: bool = False


@dataclass(frozen=True, slots=True)
class KeysFile:
    """What the file holds. A tenant may have several keys, so that one can be replaced while it is in use."""

    keys: tuple[KeyEntry, ...]
    tenants: dict[str, TenantLimits] = field(default_factory=dict)


def new_key() -> str:
    """A fresh key with 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def fingerprint(key: bytes) -> str:
    """What is kept of a key: its SHA-256 in hex."""
    return hashlib.sha256(key).hexdigest()


def read_keys_file(path: str | Path) -> KeysFile:
    """Raises ConfigError, which names the place but never repeats what stands there, and OSError."""
    try:
        tree = _parsed(Path(path).read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}: not valid YAML{where}") from None
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{path}: expected `keys` and `tenants`")
    try:
        file = from_tree(KeysFile, tree)
    except ConfigError as error:
        raise ConfigError(f"{path}: {_SECRET.sub('…', str(error))}") from None
    seen: set[str] = set()
    for index, entry in enumerate(file.keys):
        at = f"{path}: keys[{index}]"
        check_name(entry.name, f"{at}.name")
        check_name(entry.tenant, f"{at}.tenant")
        check_sha256(entry.sha256, f"{at}.sha256")
        if entry.sha256 in seen:
            raise ConfigError(f"{at}.sha256: this key is in the file twice")
        seen.add(entry.sha256)
    check_tenants(file.tenants, f"{path}: tenants")
    return file


def _parsed(data: bytes) -> Any:
    """Raises YAMLError, ValueError, RecursionError."""
    if data.lstrip().startswith(b"{"):
        with contextlib.suppress(json.JSONDecodeError):  # YAML has braces of its own.
            return json.loads(data)
    return yaml.load(data, Loader=_Loader)


def configured_keys(auth: AuthConfig) -> list[KeyEntry]:
    """The keys of `auth.keys`, which `configs.load.check` has found to be well-formed."""
    entries = []
    for index, text in enumerate(auth.keys):
        tenant, sha256, *flags = text.split(":")
        entries.append(KeyEntry(f"keys-{index}", tenant, sha256, admin=bool(flags)))
    return entries


def keys_in(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Entries for `auth.keys` out of REMORA_API_KEYS: divided by commas or white space. Raises ConfigError."""
    entries = tuple(environ.get(KEYS_VARIABLE, "").replace(",", " ").split())
    for index, entry in enumerate(entries):
        check_key(entry, f"{KEYS_VARIABLE}, entry {index + 1}")
    return entries
