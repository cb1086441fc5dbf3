"""How large the SQLite store is, for /v1/stats."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def figures(db: sqlite3.Connection, path: Path) -> dict[str, int]:
    """Rows, and bytes of the file and of its journal. Raises sqlite3.Error."""
    (sessions,) = db.execute("SELECT count(*) FROM sessions").fetchone()
    (turns,) = db.execute("SELECT count(*) FROM turns").fetchone()
    journal = path.with_name(f"{path.name}-wal")
    return {
        "sessions": int(sessions),
        "turns": int(turns),
        "file_bytes": _size(path),
        "journal_bytes": _size(journal),
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
