"""Which kind of store an URL names, and how it may be shown."""

from __future__ import annotations

import re
from urllib.parse import unquote

REDIS_SCHEMES = ("redis://", "rediss://", "unix://")
_USER = re.compile(r"(?<=://).*@", re.DOTALL)
_SECRETS = re.compile(r"(?i)(?<=[?&])(password|username)=[^&]*")


def is_redis(url: str) -> bool:
    return url.startswith(REDIS_SCHEMES)


def shown(url: str) -> str:
    """The URL without its user and password, for logs, errors and stats. Whatever stands before the last `@` goes: a
    password may hold any character, also where an URL allows it none."""
    return _SECRETS.sub(r"\1=***", _USER.sub("***@", url))


def secrets_of(url: str) -> tuple[str, ...]:
    """What must not be repeated of an URL, should somebody's error message hold it."""
    found = _USER.search(url)
    parts = {found.group()[:-1]} if found else set()
    parts |= {part.partition(":")[2] for part in parts}
    parts |= {match.group().partition("=")[2] for match in _SECRETS.finditer(url)}
    parts |= {unquote(part) for part in parts}
    return tuple(sorted(filter(None, parts), key=len, reverse=True))
