"""From a store's URL to the store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from actors.records import SessionStore, StoreError
from cluster.store.limits import StoreLimits, limits_of
from cluster.store.sqlite import SqliteStore
from cluster.store.urls import shown
from configs import StoreConfig

_SQLITE = "sqlite:"


class ShutStore(SessionStore, Protocol):
    """A store that somebody opened, and is to shut."""

    def shut(self) -> None:
        """Let go of the medium."""


def open_store(url: str, vocabulary: str = "", limits: StoreLimits | None = None) -> SqliteStore:
    """`sqlite:PATH`, or empty for a file in the user's state folder. Raises StoreError."""
    return SqliteStore(sqlite_path(url), vocabulary=vocabulary, limits=limits)


def open_shared(config: StoreConfig) -> ShutStore:
    """A store that every process may open by itself: `redis://…`. Raises StoreError."""
    try:
        from cluster.store.redis import open_redis
        from cluster.store.redis_link import RedisSettings
    except ImportError as error:
        if error.name != "redis":
            raise
        raise StoreError(
            f"session store {shown(config.url)}: it needs the extra: pip install 'remora[redis]'"
        ) from error
    settings = RedisSettings(config.url, config.prefix, config.commit_timeout_s, limits_of(config))
    return open_redis(settings, config.vocabulary)


def sqlite_path(url: str, default_name: str = "sessions") -> Path:
    """The file an URL names. Raises StoreError for an URL of another kind."""
    if not url:
        return _state_folder() / "remora" / f"{default_name}.sqlite"
    if not url.startswith(_SQLITE) or len(url) == len(_SQLITE):
        raise StoreError(f"session store {shown(url)!r}: the URL must be sqlite:PATH or redis://HOST:PORT/DB")
    return Path(url[len(_SQLITE) :]).expanduser()


def _state_folder() -> Path:
    """As the XDG base directory specification has it: a relative XDG_STATE_HOME counts as unset."""
    configured = Path(os.environ.get("XDG_STATE_HOME", ""))
    return configured if configured.is_absolute() else Path.home() / ".local" / "state"
