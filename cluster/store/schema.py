"""The tables of the SQLite store, and how a file comes to have them."""

from __future__ import annotations

import sqlite3

SCHEMA_VERSION = 1

_TABLES = """
CREATE TABLE remora_schema (version INTEGER NOT NULL);
CREATE TABLE sessions (
    generation INTEGER PRIMARY KEY AUTOINCREMENT,  -- AUTOINCREMENT: never reused, also when the last row is deleted
    tenant TEXT NOT NULL,
    session_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    owner TEXT NOT NULL,
    mode TEXT NOT NULL,
    idle_timeout_s REAL,
    capacity_tokens INTEGER,
    turns INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    last_active_at REAL NOT NULL,
    UNIQUE (tenant, session_id)
);
CREATE INDEX sessions_by_owner ON sessions (owner);
CREATE INDEX sessions_by_activity ON sessions (last_active_at) WHERE idle_timeout_s > 0;
CREATE TABLE turns (
    generation INTEGER NOT NULL REFERENCES sessions (generation) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    rid TEXT NOT NULL,
    parent TEXT,
    keep INTEGER NOT NULL,
    input_ids BLOB NOT NULL,   -- little-endian int32
    output_ids BLOB NOT NULL,  -- little-endian int32
    outcome TEXT NOT NULL,
    digest BLOB NOT NULL,
    cached_tokens INTEGER NOT NULL,
    matched TEXT,
    dropped TEXT NOT NULL,     -- JSON list of rids
    PRIMARY KEY (generation, number),
    UNIQUE (generation, rid)
);
"""


class SchemaTooNew(Exception):
    """The file was written by a newer version of this program."""


def prepare(connection: sqlite3.Connection) -> None:
    """Make the tables of an empty file; check those of another. Runs inside the caller's transaction.

    Raises SchemaTooNew, and sqlite3.Error for a file that is no database or somebody else's.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "remora_schema" in tables:
        (version,) = connection.execute("SELECT max(version) FROM remora_schema").fetchone()
        if version is None or version > SCHEMA_VERSION:
            raise SchemaTooNew(f"its schema is version {version}; this program knows versions up to {SCHEMA_VERSION}")
        return
    if tables:
        raise sqlite3.DatabaseError(f"it holds other tables: {', '.join(sorted(tables))}")
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    connection.execute("INSERT INTO remora_schema (version) VALUES (?)", (SCHEMA_VERSION,))
