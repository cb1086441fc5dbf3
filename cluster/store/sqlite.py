"""Sessions in one SQLite file, owned by one process at a time.

The file is in WAL mode with `synchronous=FULL`: what a method changed is on the disk when it returns. It is locked
exclusively while open, so that two clusters cannot take each other's sessions over.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actors.messages import SessionMode
from actors.records import (
    CommitStatus,
    SessionExists,
    SessionRecord,
    SessionUnknown,
    StoreError,
    TurnCommit,
    TurnRecord,
    TurnUnknown,
)
from actors.wire import pack_ids
from cluster.store.figures import figures
from cluster.store.lineage import context_length, copy_chain, drop_descendants
from cluster.store.rows import SESSION_COLUMNS, TURN_COLUMNS, session_of, turn_of
from cluster.store.schema import OtherVocabulary, SchemaTooNew, claim, prepare

LOCK_WAIT_S = 10.0
"""How long opening waits for another process to let go of the file (the last owner may be about to end)."""

_TIMED_OUT = "idle_timeout_s > 0 AND last_active_at + idle_timeout_s <= ?"
_FAILURES = (sqlite3.Error, OSError, OverflowError, ValueError)
"""What a medium that fails, a value that it cannot hold and a row that makes no sense raise."""


class SqliteStore:
    """Implements `SessionStore`. Any thread may call; calls run one after the other."""

    def __init__(self, path: str | Path, *, lock_wait_s: float = LOCK_WAIT_S, vocabulary: str = "") -> None:
        """Opens the file, or makes it and its folder. `vocabulary` names the model whose token ids it is to hold;
        empty means that nobody checks. Raises StoreError, also when it holds sessions of another."""
        self._path = Path(path)
        self._lock = threading.Lock()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self._path, timeout=lock_wait_s, isolation_level=None, check_same_thread=False)
        except _FAILURES as error:
            raise self._failed(error) from error
        try:
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            with self._transaction():
                prepare(self._db)
                if vocabulary:
                    claim(self._db, vocabulary)
        except (StoreError, SchemaTooNew, OtherVocabulary, *_FAILURES) as error:
            self._db.close()
            raise self._failed(error) from error

    def shut(self) -> None:
        """Let go of the file. Every later call raises StoreError."""
        with self._lock:
            self._db.close()

    # -- sessions and their owners ---------------------------------------------------------------------------------

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
        with self._transaction():
            if self._find(tenant, session_id) is not None:
                raise SessionExists(session_id)
            self._db.execute(
                "INSERT INTO sessions (tenant, session_id, epoch, owner, mode, idle_timeout_s, capacity_tokens, turns,"
                " tokens, last_active_at) VALUES (?, ?, 1, ?, ?, ?, ?, 0, 0, ?)",
                values,
            )
            return self._known(tenant, session_id)

    def acquire(self, tenant: str, session_id: str, *, owner: str, expected_epoch: int) -> SessionRecord:
        with self._transaction():
            self._db.execute(
                "UPDATE sessions SET owner = ?, epoch = epoch + 1 WHERE tenant = ? AND session_id = ? AND epoch = ?",
                (owner, tenant, session_id, expected_epoch),
            )
            return self._known(tenant, session_id)

    def close(self, tenant: str, session_id: str, generation: int, *, epoch: int | None = None) -> bool:
        with self._transaction():
            gone = self._db.execute(
                "DELETE FROM sessions WHERE tenant = ? AND session_id = ? AND generation = ?"
                " AND epoch = ifnull(?, epoch)",
                (tenant, session_id, generation, epoch),
            )
            return gone.rowcount > 0

    def fork(
        self,
        tenant: str,
        session_id: str,
        *,
        source_id: str,
        source_generation: int,
        turn: str | None,
        owner: str,
        now: float,
    ) -> SessionRecord:
        with self._transaction():
            if self._find(tenant, session_id) is not None:
                raise SessionExists(session_id)
            source = self._known(tenant, source_id)
            head = turn or source.head
            if source.generation != source_generation:
                raise SessionUnknown(source_id)
            if head is None or not self._has_turn(source_generation, head):
                raise TurnUnknown(turn or "")
            made = self._db.execute(
                "INSERT INTO sessions (tenant, session_id, epoch, owner, mode, idle_timeout_s, capacity_tokens, turns,"
                " tokens, last_active_at, head) SELECT tenant, ?, 1, ?, mode, idle_timeout_s, capacity_tokens, 0, 0, ?,"
                " ? FROM sessions WHERE generation = ?",
                (session_id, owner, now, head, source_generation),
            ).lastrowid
            assert made is not None
            copy_chain(self._db, source_generation, made, head)
            self._recount(made, head)
            return self._known(tenant, session_id)

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, tenant: str, session_id: str) -> SessionRecord:
        with self._reading():
            return self._known(tenant, session_id)

    def load(self, tenant: str, session_id: str, generation: int) -> tuple[SessionRecord, list[TurnRecord]]:
        with self._reading():
            record = self._known(tenant, session_id)
            if record.generation != generation:
                raise SessionUnknown(session_id)
            rows = self._db.execute(
                f"SELECT {TURN_COLUMNS} FROM turns WHERE generation = ? ORDER BY number", (generation,)
            )
            return record, [turn_of(row) for row in rows]

    def count(self, tenant: str) -> int:
        with self._reading():
            (number,) = self._db.execute("SELECT count(*) FROM sessions WHERE tenant = ?", (tenant,)).fetchone()
            return int(number)

    def figures(self) -> dict[str, object]:
        with self._reading():
            return {**figures(self._db, self._path)}

    def list_sessions(self, tenant: str, *, after: str = "", limit: int = 100) -> list[SessionRecord]:
        return self._select("tenant = ? AND session_id > ? ORDER BY session_id LIMIT ?", tenant, after, limit)

    def owned_by(self, owner: str) -> list[SessionRecord]:
        return self._select("owner = ? ORDER BY tenant, session_id", owner)

    def expired(self, now: float, limit: int = 1000) -> list[SessionRecord]:
        return self._select(f"{_TIMED_OUT} ORDER BY last_active_at, generation LIMIT ?", now, limit)

    # -- turns -----------------------------------------------------------------------------------------------------

    def commit(self, commits: list[TurnCommit], now: float) -> list[CommitStatus]:
        with self._transaction():
            return [self._commit(commit, now) for commit in commits]

    def _commit(self, commit: TurnCommit, now: float) -> CommitStatus:
        turn = commit.turn
        record = self._find(commit.tenant, commit.session_id)
        if record is None or record.generation != commit.generation:
            return CommitStatus.STALE
        if self._stored(record.generation, turn):
            return CommitStatus.OK
        if record.epoch != commit.epoch:
            return CommitStatus.STALE
        dropped = self._db.executemany(
            "DELETE FROM turns WHERE generation = ? AND rid = ?", [(record.generation, rid) for rid in turn.dropped]
        ).rowcount
        self._insert(record.generation, turn)
        self._db.execute(
            "UPDATE sessions SET turns = ?, tokens = ?, last_active_at = ?, head = ? WHERE generation = ?",
            (record.turns + 1 - max(dropped, 0), commit.tokens, now, turn.rid, record.generation),
        )
        return CommitStatus.OK

    def rollback(
        self, tenant: str, session_id: str, generation: int, *, epoch: int, turn: str, now: float
    ) -> CommitStatus:
        with self._transaction():
            record = self._find(tenant, session_id)
            if record is None or (record.generation, record.epoch) != (generation, epoch):
                return CommitStatus.STALE
            if not self._has_turn(generation, turn):
                raise TurnUnknown(turn)
            drop_descendants(self._db, generation, turn)
            self._db.execute(
                "UPDATE sessions SET head = ?, last_active_at = ? WHERE generation = ?", (turn, now, generation)
            )
            self._recount(generation, turn)
            return CommitStatus.OK

    def _has_turn(self, generation: int, rid: str) -> bool:
        found = self._db.execute("SELECT 1 FROM turns WHERE generation = ? AND rid = ?", (generation, rid))
        return found.fetchone() is not None

    def _recount(self, generation: int, head: str) -> None:
        self._db.execute(
            "UPDATE sessions SET tokens = ?, turns = (SELECT count(*) FROM turns WHERE generation = ?)"
            " WHERE generation = ?",
            (context_length(self._db, generation, head), generation, generation),
        )

    def _stored(self, generation: int, turn: TurnRecord) -> bool:
        """Whether this very turn is there. Another owner's turn of the same name and number, but with other tokens, is
        not it."""
        row = self._db.execute(
            f"SELECT {TURN_COLUMNS} FROM turns WHERE generation = ? AND rid = ? AND number = ?",
            (generation, turn.rid, turn.number),
        ).fetchone()
        return row is not None and turn_of(row) == turn

    def _insert(self, generation: int, turn: TurnRecord) -> None:
        self._db.execute(
            f"INSERT INTO turns (generation, {TURN_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                generation,
                turn.rid,
                turn.number,
                turn.parent,
                turn.keep,
                pack_ids(turn.input_ids),
                pack_ids(turn.output_ids),
                turn.outcome.value,
                turn.digest,
                turn.cached_tokens,
                turn.matched,
                json.dumps(turn.dropped),
            ),
        )

    # -- inside ----------------------------------------------------------------------------------------------------

    def _find(self, tenant: str, session_id: str) -> SessionRecord | None:
        row = self._db.execute(
            f"SELECT {SESSION_COLUMNS} FROM sessions WHERE tenant = ? AND session_id = ?", (tenant, session_id)
        ).fetchone()
        return None if row is None else session_of(row)

    def _known(self, tenant: str, session_id: str) -> SessionRecord:
        record = self._find(tenant, session_id)
        if record is None:
            raise SessionUnknown(session_id)
        return record

    def _select(self, where: str, *values: object) -> list[SessionRecord]:
        with self._reading():
            return [
                session_of(row)
                for row in self._db.execute(f"SELECT {SESSION_COLUMNS} FROM sessions WHERE {where}", values)
            ]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except _FAILURES as error:
                raise self._failed(error) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it or nothing, and on the disk when it ends well."""
        with self._reading():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _failed(self, error: BaseException) -> StoreError:
        if isinstance(error, StoreError):
            return error
        text = str(error)
        if "locked" in text:
            text += " (another process has it open)"
        return StoreError(f"session store {self._path}: {text}")
