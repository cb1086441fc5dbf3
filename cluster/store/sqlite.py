"""Sessions in one SQLite file: write-ahead log, synchronous commits, one transaction per batch of turns.

One process owns the file (the store actor); within it any thread may call. Token ids are little-endian int32.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actors.messages import Outcome, SessionMode
from actors.records import (
    CommitStatus,
    SessionExists,
    SessionRecord,
    SessionUnknown,
    StoreError,
    TurnCommit,
    TurnRecord,
)
from actors.wire import pack_ids, unpack_ids

SCHEMA_VERSION = 1

_SCHEMA = """
CREATE TABLE sessions (
    generation INTEGER PRIMARY KEY AUTOINCREMENT,   -- never used again, also not after a close
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
    input_ids BLOB NOT NULL,
    output_ids BLOB NOT NULL,
    outcome TEXT NOT NULL,
    digest BLOB NOT NULL,
    cached_tokens INTEGER NOT NULL,
    matched TEXT,
    PRIMARY KEY (generation, number),
    UNIQUE (generation, rid)
) WITHOUT ROWID;
"""
_SESSION_COLUMNS = (
    "tenant, session_id, generation, epoch, owner, mode, idle_timeout_s, capacity_tokens, turns, tokens, last_active_at"
)
_TURN_COLUMNS = "number, rid, parent, keep, input_ids, output_ids, outcome, digest, cached_tokens, matched"


class SqliteStore:
    """Implements `actors.records.SessionStore`. `busy_timeout_s`: how long to wait for a lock somebody else holds."""

    def __init__(self, path: str | Path, *, busy_timeout_s: float = 10.0) -> None:
        self._lock = threading.RLock()
        with _store_errors():
            Path(path).expanduser().parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                Path(path).expanduser(), timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            self._prepare()

    def shut(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    # -- sessions --------------------------------------------------------------------------------------------------

    def create(
        self,
        tenant: str,
        session_id: str,
        *,
        owner: str,
        mode: SessionMode,
        idle_timeout_s: float | None,
        capacity_tokens: int | None,
        now: float,
    ) -> SessionRecord:
        values = (tenant, session_id, owner, mode.value, idle_timeout_s, capacity_tokens, now)
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO sessions (tenant, session_id, epoch, owner, mode, idle_timeout_s, capacity_tokens, turns,"
                " tokens, last_active_at) VALUES (?, ?, 1, ?, ?, ?, ?, 0, 0, ?)"
                " ON CONFLICT (tenant, session_id) DO NOTHING",
                values,
            )
            if cursor.rowcount == 0:
                raise SessionExists(session_id)
            return self._find(tenant, session_id)

    def acquire(self, tenant: str, session_id: str, *, owner: str, expected_epoch: int) -> SessionRecord:
        with self._transaction() as db:
            db.execute(
                "UPDATE sessions SET owner = ?, epoch = epoch + 1 WHERE tenant = ? AND session_id = ? AND epoch = ?",
                (owner, tenant, session_id, expected_epoch),
            )
            return self._find(tenant, session_id)

    def get(self, tenant: str, session_id: str) -> SessionRecord:
        with self._reading():
            return self._find(tenant, session_id)

    def load(self, tenant: str, session_id: str, generation: int) -> tuple[SessionRecord, list[TurnRecord]]:
        with self._transaction() as db:
            record = self._find(tenant, session_id)
            if record.generation != generation:
                raise SessionUnknown(session_id)
            rows = db.execute(
                f"SELECT {_TURN_COLUMNS} FROM turns WHERE generation = ? ORDER BY number",  # noqa: S608
                (generation,),
            )
            return record, [_turn(row) for row in rows]

    def close(self, tenant: str, session_id: str, generation: int) -> bool:
        with self._transaction() as db:
            cursor = db.execute(
                "DELETE FROM sessions WHERE tenant = ? AND session_id = ? AND generation = ?",
                (tenant, session_id, generation),
            )
            return cursor.rowcount > 0

    def list_sessions(self, tenant: str, *, after: str = "", limit: int = 100) -> list[SessionRecord]:
        return self._select("tenant = ? AND session_id > ? ORDER BY session_id LIMIT ?", tenant, after, limit)

    def owned_by(self, owner: str) -> list[SessionRecord]:
        return self._select("owner = ? ORDER BY generation", owner)

    def expired(self, now: float, limit: int = 1000) -> list[SessionRecord]:
        condition = "idle_timeout_s > 0 AND last_active_at + idle_timeout_s <= ? ORDER BY last_active_at LIMIT ?"
        return self._select(condition, now, limit)

    # -- turns -----------------------------------------------------------------------------------------------------

    def commit(self, commits: list[TurnCommit], now: float) -> list[CommitStatus]:
        with self._transaction():
            return [self._commit_one(commit, now) for commit in commits]

    def _commit_one(self, commit: TurnCommit, now: float) -> CommitStatus:
        current = self._db.execute(
            "SELECT epoch FROM sessions WHERE tenant = ? AND session_id = ? AND generation = ?",
            (commit.tenant, commit.session_id, commit.generation),
        ).fetchone()
        if current is None or current[0] != commit.epoch:
            return CommitStatus.STALE
        turn = commit.turn
        stored = self._db.execute(
            "SELECT number FROM turns WHERE generation = ? AND rid = ?", (commit.generation, turn.rid)
        ).fetchone()
        if stored is not None and stored[0] == turn.number:
            return CommitStatus.OK
        self._db.executemany(
            "DELETE FROM turns WHERE generation = ? AND rid = ?", [(commit.generation, rid) for rid in turn.dropped]
        )
        self._db.execute(
            f"INSERT INTO turns (generation, {_TURN_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (
                commit.generation,
                turn.number,
                turn.rid,
                turn.parent,
                turn.keep,
                pack_ids(turn.input_ids),
                pack_ids(turn.output_ids),
                turn.outcome.value,
                turn.digest,
                turn.cached_tokens,
                turn.matched,
            ),
        )
        self._db.execute(
            "UPDATE sessions SET tokens = ?, last_active_at = ?,"
            " turns = (SELECT count(*) FROM turns WHERE turns.generation = sessions.generation) WHERE generation = ?",
            (commit.tokens, now, commit.generation),
        )
        return CommitStatus.OK

    # -- inside ----------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA foreign_keys = ON")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise StoreError(f"the session file has schema {version}; this release knows {SCHEMA_VERSION}")
        if version == 0:
            self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _store_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock, _store_errors():
            yield

    def _find(self, tenant: str, session_id: str) -> SessionRecord:
        found = self._select("tenant = ? AND session_id = ?", tenant, session_id)
        if not found:
            raise SessionUnknown(session_id)
        return found[0]

    def _select(self, condition: str, *values: object) -> list[SessionRecord]:
        with self._reading():
            rows = self._db.execute(f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE {condition}", values)  # noqa: S608
            return [_session(row) for row in rows]


@contextmanager
def _store_errors() -> Iterator[None]:
    """Whatever SQLite or the file system says becomes a StoreError."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"{type(error).__name__}: {error}") from error


def _session(row: tuple) -> SessionRecord:  # type: ignore[type-arg]
    tenant, session_id, generation, epoch, owner, mode, idle_timeout_s, capacity, turns, tokens, active = row
    return SessionRecord(
        tenant=tenant,
        session_id=session_id,
        generation=generation,
        epoch=epoch,
        owner=owner,
        mode=SessionMode(mode),
        idle_timeout_s=idle_timeout_s,
        capacity_tokens=capacity,
        turns=turns,
        tokens=tokens,
        last_active_at=active,
    )


def _turn(row: tuple) -> TurnRecord:  # type: ignore[type-arg]
    number, rid, parent, keep, input_ids, output_ids, outcome, digest, cached_tokens, matched = row
    return TurnRecord(
        rid=rid,
        number=number,
        parent=parent,
        keep=keep,
        input_ids=unpack_ids(input_ids),
        output_ids=unpack_ids(output_ids),
        outcome=Outcome(outcome),
        digest=digest,
        cached_tokens=cached_tokens,
        matched=matched,
    )
