"""The tables of the SQLite store, and how a file comes to have them."""

from __future__ import annotations

import sqlite3

from cluster.store.limits import RESULT_BYTES, TURN_BYTES
from cluster.store.rows import TURN_FIELDS

SCHEMA_VERSION = 5

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
    head TEXT,                 -- rid; NULL while there is no turn
    bytes INTEGER NOT NULL DEFAULT 0,  -- of its turns, as `limits.bytes_of` counts
    weights TEXT NOT NULL DEFAULT '',  -- version that its last turn was made with
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
    sum INTEGER NOT NULL DEFAULT 0,  -- `rows.turn_sum`
    PRIMARY KEY (generation, number),
    UNIQUE (generation, rid)
);
"""

_SINCE_3 = f"""
CREATE TABLE results (          -- of requests without a session
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    digest BLOB NOT NULL,
    owner TEXT NOT NULL,
    until REAL NOT NULL,       -- Unix time at which the state ends
    ttl_s REAL NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX results_by_time ON results (until);
CREATE TABLE remora_totals (bytes INTEGER NOT NULL, result_bytes INTEGER NOT NULL);
INSERT INTO remora_totals (bytes, result_bytes) VALUES (0, 0);
CREATE TRIGGER session_opened AFTER INSERT ON sessions BEGIN
    UPDATE remora_totals SET bytes = bytes + new.bytes; END;
CREATE TRIGGER session_changed AFTER UPDATE OF bytes ON sessions BEGIN
    UPDATE remora_totals SET bytes = bytes + new.bytes - old.bytes; END;
CREATE TRIGGER session_closed AFTER DELETE ON sessions BEGIN
    UPDATE remora_totals SET bytes = bytes - old.bytes; END;
CREATE TRIGGER result_made AFTER INSERT ON results BEGIN
    UPDATE remora_totals SET result_bytes = result_bytes + {RESULT_BYTES} + length(new.body); END;
CREATE TRIGGER result_changed AFTER UPDATE OF body ON results BEGIN
    UPDATE remora_totals SET result_bytes = result_bytes + length(new.body) - length(old.body); END;
CREATE TRIGGER result_gone AFTER DELETE ON results BEGIN
    UPDATE remora_totals SET result_bytes = result_bytes - {RESULT_BYTES} - length(old.body); END;
"""

_SINCE_5 = f"""
CREATE TABLE result_holders (  -- what each tenant has of `result_bytes`
    tenant TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
);
INSERT INTO result_holders (tenant, bytes)
    SELECT tenant, sum({RESULT_BYTES} + length(body)) FROM results GROUP BY tenant;
CREATE INDEX result_holders_by_bytes ON result_holders (bytes);
CREATE INDEX results_by_tenant ON results (tenant, until);
CREATE TRIGGER holding_begun AFTER INSERT ON results BEGIN
    INSERT INTO result_holders (tenant, bytes) VALUES (new.tenant, {RESULT_BYTES} + length(new.body))
        ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes; END;
CREATE TRIGGER holding_changed AFTER UPDATE OF body ON results BEGIN
    UPDATE result_holders SET bytes = bytes + length(new.body) - length(old.body) WHERE tenant = new.tenant; END;
CREATE TRIGGER holding_ended AFTER DELETE ON results BEGIN
    UPDATE result_holders SET bytes = bytes - {RESULT_BYTES} - length(old.body) WHERE tenant = old.tenant; \
DELETE FROM result_holders WHERE tenant = old.tenant AND bytes <= 0; END;
"""

_MIGRATIONS = {
    1: """
ALTER TABLE sessions ADD COLUMN head TEXT;
UPDATE sessions SET head =
    (SELECT rid FROM turns WHERE turns.generation = sessions.generation ORDER BY number DESC LIMIT 1);
""",
    2: f"""
ALTER TABLE turns ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
UPDATE turns SET sum = turn_sum({TURN_FIELDS});
ALTER TABLE sessions ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
{_SINCE_3}
UPDATE sessions SET bytes = ifnull(
    (SELECT sum({TURN_BYTES} + length(input_ids) + length(output_ids)) FROM turns
     WHERE turns.generation = sessions.generation), 0);
""",
    3: """
ALTER TABLE sessions ADD COLUMN weights TEXT NOT NULL DEFAULT '';
""",
    4: _SINCE_5,
}
"""By version: what brings a file of that version to the next."""


class SchemaTooNew(Exception):
    """The file was written by a newer version of this program."""


def prepare(connection: sqlite3.Connection) -> None:
    """Make the tables of an empty file, or bring an older version's up to date. Runs inside the caller's transaction,
    on a connection that knows `turn_sum`.

    Raises SchemaTooNew, and sqlite3.Error for a file that is no database or somebody else's.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "remora_schema" in tables:
        (version,) = connection.execute("SELECT max(version) FROM remora_schema").fetchone()
        if version is None or version > SCHEMA_VERSION:
            raise SchemaTooNew(f"its schema is version {version}; this program knows versions up to {SCHEMA_VERSION}")
        for older in range(version, SCHEMA_VERSION):
            _execute(connection, _MIGRATIONS[older])
            connection.execute("UPDATE remora_schema SET version = ?", (older + 1,))
        return
    if tables:
        raise sqlite3.DatabaseError(f"it holds other tables: {', '.join(sorted(tables))}")
    _execute(connection, _TABLES + _SINCE_3 + _SINCE_5)
    connection.execute("INSERT INTO remora_schema (version) VALUES (?)", (SCHEMA_VERSION,))


class OtherVocabulary(Exception):
    """The token ids in the file mean something else to the model that is to be served."""


def claim(connection: sqlite3.Connection, vocabulary: str) -> None:
    """Note whose token ids the file holds, and refuse another's while there are sessions (rule T6): their history
    would be read as text that nobody wrote. Runs inside the caller's transaction. Raises OtherVocabulary."""
    connection.execute("CREATE TABLE IF NOT EXISTS remora_vocabulary (name TEXT NOT NULL)")
    found = connection.execute("SELECT name FROM remora_vocabulary").fetchone()
    if found is not None and found[0] == vocabulary:
        return
    (sessions,) = connection.execute("SELECT count(*) FROM sessions").fetchone()
    if found is not None and sessions:
        raise OtherVocabulary(f"its {sessions} sessions belong to {found[0]}; this is {vocabulary}")
    connection.execute("DELETE FROM remora_vocabulary")
    connection.execute("INSERT INTO remora_vocabulary (name) VALUES (?)", (vocabulary,))


def _execute(connection: sqlite3.Connection, script: str) -> None:
    """Statement by statement: `executescript` would commit the caller's transaction."""
    for statement in script.split(";\n"):
        if statement.strip():
            connection.execute(statement)
