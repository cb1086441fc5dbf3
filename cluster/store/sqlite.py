"""Sessions in one SQLite file, owned by one process at a time.

The file is in WAL mode with `synchronous=FULL`: what a method changed is on the disk when it returns. It is locked
exclusively while open, so that two clusters cannot take each other's sessions over.
"""

from __future__ import annotations

from pathlib import Path

from actors.messages import SessionMode
from actors.records import (
    CommitStatus,
    PutStatus,
    ResultClaim,
    ResultRecord,
    ResultState,
    SessionExists,
    SessionRecord,
    SessionUnknown,
    TurnCommit,
    TurnRecord,
    TurnUnknown,
)
from cluster.store import sqlite_results
from cluster.store.figures import figures
from cluster.store.limits import StoreLimits, bytes_of
from cluster.store.lineage import bytes_held, context_length, copy_chain, drop_descendants
from cluster.store.rows import SESSION_COLUMNS, TURN_COLUMNS, row_of, session_of, turn_of
from cluster.store.sqlite_file import SqliteFile

LOCK_WAIT_S = 10.0
"""How long opening waits for another process to let go of the file (the last owner may be about to end)."""

_TIMED_OUT = "idle_timeout_s > 0 AND last_active_at + idle_timeout_s <= ?"


class SqliteStore:
    """Implements `SessionStore`. Any thread may call; calls run one after the other."""

    def __init__(
        self,
        path: str | Path,
        *,
        lock_wait_s: float = LOCK_WAIT_S,
        vocabulary: str = "",
        limits: StoreLimits | None = None,
    ) -> None:
        """Opens the file, or makes it and its folder. `vocabulary` names the model whose token ids it is to hold;
        empty means that nobody checks. Raises StoreError, also when it holds sessions of another."""
        self._limits = limits or StoreLimits()
        self._file = SqliteFile(path, lock_wait_s=lock_wait_s, vocabulary=vocabulary)
        self._db = self._file.db

    def shut(self) -> None:
        """Let go of the file. Every later call raises StoreError."""
        self._file.shut()

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
        with self._file.transaction():
            if self._find(tenant, session_id) is not None:
                raise SessionExists(session_id)
            self._db.execute(
                "INSERT INTO sessions (tenant, session_id, epoch, owner, mode, idle_timeout_s, capacity_tokens, turns,"
                " tokens, last_active_at) VALUES (?, ?, 1, ?, ?, ?, ?, 0, 0, ?)",
                values,
            )
            return self._known(tenant, session_id)

    def acquire(self, tenant: str, session_id: str, *, owner: str, expected_epoch: int) -> SessionRecord:
        with self._file.transaction():
            self._db.execute(
                "UPDATE sessions SET owner = ?, epoch = epoch + 1 WHERE tenant = ? AND session_id = ? AND epoch = ?",
                (owner, tenant, session_id, expected_epoch),
            )
            return self._known(tenant, session_id)

    def close(self, tenant: str, session_id: str, generation: int, *, epoch: int | None = None) -> bool:
        with self._file.transaction(deletes=True):
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
        with self._file.transaction():
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
                " tokens, last_active_at, head, weights) SELECT tenant, ?, 1, ?, mode, idle_timeout_s, capacity_tokens,"
                " 0, 0, ?, ?, weights FROM sessions WHERE generation = ?",
                (session_id, owner, now, head, source_generation),
            ).lastrowid
            assert made is not None
            copy_chain(self._db, source_generation, made, head)
            self._recount(made, head)
            if self._room(made, 0) is not CommitStatus.OK:
                raise self._file.full("the fork")
            return self._known(tenant, session_id)

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, tenant: str, session_id: str) -> SessionRecord:
        with self._file.reading():
            return self._known(tenant, session_id)

    def load(self, tenant: str, session_id: str, generation: int) -> tuple[SessionRecord, list[TurnRecord]]:
        with self._file.reading():
            record = self._known(tenant, session_id)
            if record.generation != generation:
                raise SessionUnknown(session_id)
            rows = self._db.execute(
                f"SELECT {TURN_COLUMNS} FROM turns WHERE generation = ? ORDER BY number", (generation,)
            )
            return record, [turn_of(row) for row in rows]

    def count(self, tenant: str) -> int:
        with self._file.reading():
            (number,) = self._db.execute("SELECT count(*) FROM sessions WHERE tenant = ?", (tenant,)).fetchone()
            return int(number)

    def figures(self) -> dict[str, object]:
        with self._file.reading():
            return {**figures(self._db, self._file.path)}

    def list_sessions(self, tenant: str, *, after: str = "", limit: int = 100) -> list[SessionRecord]:
        return self._select("tenant = ? AND session_id > ? ORDER BY session_id LIMIT ?", tenant, after, limit)

    def owned_by(self, owner: str) -> list[SessionRecord]:
        return self._select("owner = ? ORDER BY tenant, session_id", owner)

    def expired(self, now: float, limit: int = 1000) -> list[SessionRecord]:
        return self._select(f"{_TIMED_OUT} ORDER BY last_active_at, generation LIMIT ?", now, limit)

    # -- turns -----------------------------------------------------------------------------------------------------

    def commit(self, commits: list[TurnCommit], now: float) -> list[CommitStatus]:
        with self._file.transaction():
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
        change = bytes_of(turn) - (bytes_held(self._db, record.generation, turn.dropped) if turn.dropped else 0)
        room = self._room(record.generation, change)
        if room is not CommitStatus.OK:
            return room
        dropped = self._db.executemany(
            "DELETE FROM turns WHERE generation = ? AND rid = ?", [(record.generation, rid) for rid in turn.dropped]
        ).rowcount
        self._insert(record.generation, turn)
        self._db.execute(
            "UPDATE sessions SET turns = ?, tokens = ?, last_active_at = ?, head = ?, weights = ?, bytes = bytes + ?"
            " WHERE generation = ?",
            (
                record.turns + 1 - max(dropped, 0),
                commit.tokens,
                now,
                turn.rid,
                commit.weights,
                change,
                record.generation,
            ),
        )
        return CommitStatus.OK

    def rollback(
        self, tenant: str, session_id: str, generation: int, *, epoch: int, turn: str, now: float
    ) -> CommitStatus:
        with self._file.transaction():
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
            "UPDATE sessions SET tokens = ?, bytes = ?, turns = (SELECT count(*) FROM turns WHERE generation = ?)"
            " WHERE generation = ?",
            (context_length(self._db, generation, head), bytes_held(self._db, generation), generation, generation),
        )

    def _room(self, generation: int, change: int) -> CommitStatus:
        """Whether a session may hold `change` bytes more than it does."""
        one, together = self._limits.session_bytes, self._limits.total_bytes
        if change < 0 or not (one or together):
            return CommitStatus.OK
        (held,) = self._db.execute("SELECT bytes FROM sessions WHERE generation = ?", (generation,)).fetchone()
        (total,) = self._db.execute("SELECT bytes FROM remora_totals").fetchone()
        if 0 < one < held + change:
            return CommitStatus.SESSION_FULL
        return CommitStatus.STORE_FULL if 0 < together < total + change else CommitStatus.OK

    def _stored(self, generation: int, turn: TurnRecord) -> bool:
        """Whether this very turn is there. Another owner's turn of the same name and number, but with other tokens, is
        not it."""
        row = self._db.execute(
            f"SELECT {TURN_COLUMNS} FROM turns WHERE generation = ? AND rid = ? AND number = ?",
            (generation, turn.rid, turn.number),
        ).fetchone()
        return row is not None and turn_of(row) == turn

    def _insert(self, generation: int, turn: TurnRecord) -> None:
        row = (generation, *row_of(turn))
        marks = ", ".join("?" * len(row))
        self._db.execute(f"INSERT INTO turns (generation, {TURN_COLUMNS}) VALUES ({marks})", row)

    # -- results of requests without a session -----------------------------------------------------------------------

    def claim_result(
        self, tenant: str, key: str, *, digest: bytes, owner: str, now: float, lease_s: float
    ) -> ResultClaim:
        with self._file.transaction():
            return sqlite_results.claim_result(self._db, tenant, key, digest, owner, now, lease_s)

    def put_result(
        self,
        tenant: str,
        key: str,
        *,
        digest: bytes,
        owner: str,
        body: bytes,
        now: float,
        ttl_s: float,
        replace: bool = False,
    ) -> PutStatus:
        made = ResultRecord(state=ResultState.DONE, digest=digest, owner=owner, until=now + ttl_s, body=body)
        with self._file.transaction(deletes=True):
            return sqlite_results.put_result(
                self._db, tenant, key, made, now=now, ttl_s=ttl_s, limits=self._limits, replace=replace
            )

    def get_result(self, tenant: str, key: str, now: float) -> ResultRecord | None:
        with self._file.reading():
            return sqlite_results.get_result(self._db, tenant, key, now)

    def release_result(self, tenant: str, key: str, *, owner: str) -> bool:
        with self._file.transaction():
            return sqlite_results.release_result(self._db, tenant, key, owner)

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
        with self._file.reading():
            return [
                session_of(row)
                for row in self._db.execute(f"SELECT {SESSION_COLUMNS} FROM sessions WHERE {where}", values)
            ]
