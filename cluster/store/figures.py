"""How large the SQLite store is, for /v1/stats."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def figures(db: sqlite3.Connection, path: Path) -> dict[str, int]:
    """Rows, what these count for as the caps see it, and bytes of the file and of its journal. Raises sqlite3.Error."""
    (sessions,) = db.execute("SELECT count(*) FROM sessions").fetchone()
    (turns,) = db.execute("SELECT count(*) FROM turns").fetchone()
    (results,) = db.execute("SELECT count(*) FROM results").fetchone()
    turn_bytes, result_bytes = db.execute("SELECT bytes, result_bytes FROM remora_totals").fetchone()
    journal = path.with_name(f"{path.name}-wal")
    return {
        "sessions": int(sessions),
        "turns": int(turns),
        "bytes": int(turn_bytes),
        "results": int(results),
        "result_bytes": int(result_bytes),
        "file_bytes": _size(path),
        "journal_bytes": _size(journal),
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
