"""From a store's URL to the store."""

from __future__ import annotations

import os
from pathlib import Path

from actors.records import StoreError
from cluster.store.sqlite import SqliteStore

_SQLITE = "sqlite:"


def open_store(url: str, vocabulary: str = "") -> SqliteStore:
    """`sqlite:PATH`, or empty for a file in the user's state folder. Raises StoreError."""
    return SqliteStore(sqlite_path(url), vocabulary=vocabulary)


def sqlite_path(url: str, default_name: str = "sessions") -> Path:
    """The file an URL names. Raises StoreError for an URL of another kind."""
    if not url:
        return _state_folder() / "remora" / f"{default_name}.sqlite"
    if not url.startswith(_SQLITE) or len(url) == len(_SQLITE):
        raise StoreError(f"session store {url!r}: the URL must be sqlite:PATH")
    return Path(url[len(_SQLITE) :]).expanduser()


def _state_folder() -> Path:
    """As the XDG base directory specification has it: a relative XDG_STATE_HOME counts as unset."""
    configured = Path(os.environ.get("XDG_STATE_HOME", ""))
    return configured if configured.is_absolute() else Path.home() / ".local" / "state"
