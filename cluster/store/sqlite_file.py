"""One SQLite file, owned by one process at a time: transactions, errors, and space given back to the disk."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actors.records import StoreError, StoreFull
from cluster.store.rows import turn_sum
from cluster.store.schema import OtherVocabulary, SchemaTooNew, claim, prepare

VACUUM_PAGES = 2048
"""Free pages that one call gives back at most: 8 MB, some milliseconds."""
FREE_SHARE = 0.1
SPARE_PAGES = 256
"""So much of the file, or so many pages of it (1 MB), may be free, for turns to come."""
JOURNAL_BYTES = 16 * 2**20
"""The journal is cut to this when it has been written back."""
_INCREMENTAL = 2
_FAILURES = (sqlite3.Error, OSError, OverflowError, ValueError)
"""What a medium that fails, a value that it cannot hold and a row that makes no sense raise."""

logger = logging.getLogger("remora.store")


class SqliteFile:
    """Any thread may call; calls run one after the other."""

    def __init__(self, path: str | Path, *, lock_wait_s: float, vocabulary: str) -> None:
        """Opens the file, or makes it and its folder. Raises StoreError."""
        self.path = Path(path)
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.db = sqlite3.connect(self.path, timeout=lock_wait_s, isolation_level=None, check_same_thread=False)
        except _FAILURES as error:
            raise self._failed(error) from error
        try:
            self._set_up(vocabulary)
        except (StoreError, SchemaTooNew, OtherVocabulary, *_FAILURES) as error:
            self.db.close()
            raise self._failed(error) from error

    def _set_up(self, vocabulary: str) -> None:
        self.db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self.db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # Has an effect here on an empty file only.
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute("PRAGMA foreign_keys = ON")
        self.db.execute(f"PRAGMA journal_size_limit = {JOURNAL_BYTES}")
        self.db.create_function("turn_sum", -1, lambda *row: turn_sum(row), deterministic=True)
        with self.transaction():
            prepare(self.db)
            if vocabulary:
                claim(self.db, vocabulary)
        if self._number("auto_vacuum") != _INCREMENTAL:
            self._rebuild()

    def _rebuild(self) -> None:
        """Have a file made before version 3 give space back too. Takes as much space again while it runs."""
        try:
            self.db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self.db.execute("VACUUM")
        except sqlite3.Error as error:
            logger.warning("session store %s: it cannot be rebuilt to give space back: %s", self.path, error)

    def give_back_space(self) -> None:
        """Shorten the file if much of it is free. To be called inside `reading`, after a transaction that deleted."""
        if self._number("freelist_count") > max(SPARE_PAGES, FREE_SHARE * self._number("page_count")):
            self.db.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")  # `execute` would do one page of it.

    def shut(self) -> None:
        """Let go of the file. Every later call raises StoreError."""
        with self._lock:
            self.db.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Alone with the file. What goes wrong with it is a StoreError."""
        with self._lock:
            try:
                yield
            except _FAILURES as error:
                raise self._failed(error) from error

    @contextmanager
    def transaction(self, *, deletes: bool = False) -> Iterator[None]:
        """All of it or nothing, and on the disk when it ends well."""
        with self.reading():
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.db.execute("COMMIT")
            finally:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
            if deletes:
                self.give_back_space()

    def full(self, what: str) -> StoreFull:
        return StoreFull(f"session store {self.path}: {what} would take it over its byte cap")

    def _number(self, pragma: str) -> int:
        (number,) = self.db.execute(f"PRAGMA {pragma}").fetchone()
        return int(number)

    def _failed(self, error: BaseException) -> StoreError:
        if isinstance(error, StoreError):
            return error
        text = str(error)
        if "locked" in text:
            text += " (another process has it open)"
        return StoreError(f"session store {self.path}: {text}")
