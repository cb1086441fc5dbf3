"""A file that is full, shared, torn or long, and what the SQLite store does about it."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.messages import Outcome, SessionMode
from actors.records import CommitStatus, SessionRecord, StoreError, TurnCommit, TurnRecord
from cluster.store.sqlite import SqliteStore

HOLDER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""
TOKENS = 50_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(path)
    yield opened
    opened.shut()


def create(store: SqliteStore, session_id: str = "s") -> SessionRecord:
    options = {"owner": "w", "mode": SessionMode.TREE, "idle_timeout_s": None, "capacity_tokens": None}
    return store.create("t", session_id, now=1.0, **options)  # type: ignore[arg-type]


def commit_of(record: SessionRecord, number: int, size: int = TOKENS) -> TurnCommit:
    turn = TurnRecord(
        rid=f"r{number}",
        number=number,
        parent=None,
        keep=0,
        input_ids=(number,) * size,
        output_ids=(),
        outcome=Outcome.STOP,
    )
    return TurnCommit(
        tenant="t", session_id=record.session_id, generation=record.generation, epoch=1, turn=turn, tokens=size
    )


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """What this process writes meanwhile, as on a full disk. Python ignores the signal: the write fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_without_room_fails_the_commit_and_nothing_else(store: SqliteStore, path: Path) -> None:
    """T1: the turn is not told as done; what was stored is there, and the next one is stored once there is room."""
    record = create(store)
    first, second = commit_of(record, 1), commit_of(record, 2)
    store.commit([first], 2.0)
    with files_no_longer_than(path.with_name("s.sqlite-wal").stat().st_size + 8192):
        with pytest.raises(StoreError, match=r"s\.sqlite: (disk I/O error|database or disk is full)"):
            store.commit([second], 3.0)
        assert store.load("t", "s", record.generation)[1] == [first.turn]
    assert store.commit([second], 4.0) == [CommitStatus.OK]
    store.shut()
    again = SqliteStore(path)
    assert again.load("t", "s", record.generation)[1] == [first.turn, second.turn]
    again.shut()


def test_a_file_that_another_process_writes_is_refused_until_it_lets_go(path: Path) -> None:
    SqliteStore(path).shut()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(StoreError, match="another process has it open"):
        SqliteStore(path, lock_wait_s=0.05)
    holder.communicate("")
    SqliteStore(path, lock_wait_s=10.0).shut()


def is_whole(store: SqliteStore, record: SessionRecord, commit: TurnCommit) -> bool:
    """False when it is refused."""
    try:
        turns = store.load("t", record.session_id, record.generation)[1]
    except StoreError:
        return False
    assert turns == [commit.turn]
    return True


def test_a_file_torn_in_the_middle_is_an_error_and_never_a_wrong_history(path: Path) -> None:
    """T6: every session either is what it was or is refused."""
    store = SqliteStore(path)
    records = [create(store, f"s{number}") for number in range(20)]
    commits = [commit_of(record, 1, size=2000) for record in records]
    store.commit(commits, 2.0)
    store.shut()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xa5" * (size // 4))
    torn = SqliteStore(path)
    whole = [is_whole(torn, record, commit) for record, commit in zip(records, commits, strict=True)]
    assert 0 < sum(whole) < len(whole)
    torn.shut()


def test_a_file_cut_short_is_an_error(path: Path) -> None:
    store = SqliteStore(path)
    record = create(store)
    store.commit([commit_of(record, 1)], 2.0)
    store.shut()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(StoreError, match="malformed"):
        SqliteStore(path).load("t", "s", record.generation)


def test_a_torn_journal_costs_only_what_was_never_acknowledged(path: Path) -> None:
    """T1: a crash in the middle of a write leaves half a frame at the end of the journal."""
    store = SqliteStore(path)
    record = create(store)
    first = commit_of(record, 1, size=100)
    store.commit([first], 2.0)
    journal = path.with_name("s.sqlite-wal")
    copies = path.read_bytes(), journal.read_bytes()
    store.commit([commit_of(record, 2, size=100)], 3.0)
    torn = journal.read_bytes()[: len(copies[1]) + 1000]
    store.shut()
    path.write_bytes(copies[0])
    journal.write_bytes(torn)
    again = SqliteStore(path)
    assert again.load("t", "s", record.generation)[1] == [first.turn]
    again.shut()


def test_closed_sessions_give_their_space_back_to_the_disk(path: Path) -> None:
    """S10: the file is as long as what it holds, give or take a tenth or a megabyte; and there is no journal left."""
    store = SqliteStore(path)
    kept = create(store, "kept")
    store.commit([commit_of(kept, 1)], 2.0)
    others = [create(store, f"s{number}") for number in range(40)]
    store.commit([commit_of(record, 1) for record in others], 2.0)
    store.shut()
    grown = path.stat().st_size
    assert grown > 40 * 4 * TOKENS
    store = SqliteStore(path)
    for record in others:
        assert store.close("t", record.session_id, record.generation)
    (free,) = store._db.execute("PRAGMA freelist_count").fetchone()
    assert free <= 256
    assert store.load("t", "kept", kept.generation)[1] == [commit_of(kept, 1).turn]
    store.shut()
    assert path.stat().st_size < 4 * TOKENS + 256 * 4096 + 100_000
    assert not path.with_name("s.sqlite-wal").exists()


def test_expired_results_give_their_space_back(path: Path) -> None:
    store = SqliteStore(path)
    for number in range(20):
        store.put_result("t", f"k{number}", digest=b"", owner="a", body=b"x" * 200_000, now=1.0, ttl_s=5.0)
    store.put_result("t", "one", digest=b"", owner="a", body=b"", now=1.0, ttl_s=5.0)
    for number in range(3):
        store.put_result("t", f"later{number}", digest=b"", owner="a", body=b"", now=100.0, ttl_s=5.0)
    store.shut()
    assert path.stat().st_size < 256 * 4096 + 100_000


def test_the_space_of_a_huge_session_comes_back_bit_by_bit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call waits for a whole file to be moved."""
    monkeypatch.setattr("cluster.store.sqlite_file.VACUUM_PAGES", 10)
    monkeypatch.setattr("cluster.store.sqlite_file.SPARE_PAGES", 0)
    store = SqliteStore(path)
    record = create(store)
    store.commit([commit_of(record, 1)], 2.0)
    create(store, "other")
    count = "PRAGMA page_count"
    (before,) = store._db.execute(count).fetchone()
    store.close("t", "s", record.generation)
    assert store._db.execute(count).fetchone() == (before - 10,)
    other = store.get("t", "other")
    store.close("t", "other", other.generation)
    assert store._db.execute(count).fetchone() == (before - 20,)
    store.shut()


def test_a_file_that_is_somebody_elses_format_is_not_touched(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE remora_schema (version INTEGER)")
    db.close()
    with pytest.raises(StoreError, match="version None"):
        SqliteStore(path)
