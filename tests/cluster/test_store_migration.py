"""Files of earlier versions (rule T1): what they hold is read, counted and goes on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from actors.messages import Outcome, SessionMode
from actors.records import CommitStatus, PutStatus, SessionRecord, StoreError, TurnCommit, TurnRecord
from cluster.store.limits import StoreLimits
from cluster.store.schema import SCHEMA_VERSION
from cluster.store.sqlite import SqliteStore

VERSION_2 = (Path(__file__).parent / "fixtures" / "store_v2.sql").read_text(encoding="utf-8")
"""Written by the last program of version 2: one empty session, one of four turns; two that were closed."""
CHAT = "чат 🪶"
EMPTY = SessionRecord(
    tenant="t",
    session_id="empty",
    generation=1,
    epoch=1,
    owner="w1",
    mode=SessionMode.STREAMING,
    idle_timeout_s=None,
    capacity_tokens=None,
    turns=0,
    tokens=0,
    last_active_at=100.0,
)
FULL = SessionRecord(
    tenant="ü",
    session_id=CHAT,
    generation=3,
    epoch=2,
    owner="w3",
    mode=SessionMode.TREE,
    idle_timeout_s=7.5,
    capacity_tokens=500,
    turns=4,
    tokens=6,
    last_active_at=200.0,
    head="r4",
)


def turn(number: int, parent: str | None, keep: int, **changed: object) -> TurnRecord:
    fields: dict[str, object] = {
        "rid": f"r{number}",
        "number": number,
        "parent": parent,
        "keep": keep,
        "input_ids": (number, 1),
        "output_ids": (2**31 - 1,),
        "outcome": Outcome.STOP,
        "digest": b"\x00\xff",
        "matched": "\n",
        **changed,
    }
    return TurnRecord(**fields)  # type: ignore[arg-type]


TURNS = [
    turn(1, None, 0),
    turn(2, "r1", 3, matched=None, outcome=Outcome.LENGTH, cached_tokens=3),
    turn(3, "r2", 2, input_ids=()),
    turn(4, "r1", 3),
]
NO_HOLDERS = "; ".join(
    [
        *(f"DROP TRIGGER holding_{name}" for name in ("begun", "changed", "ended")),
        "DROP INDEX results_by_tenant; DROP TABLE result_holders",
    ]
)
"""Version 5 has them."""
BYTES = 4 * 200 + 4 * (3 + 3 + 1 + 3)


def write(path: Path, *more: str) -> Path:
    """A file of version 2, and what was done to it since."""
    with sqlite3.connect(path) as db:
        for script in (VERSION_2, *more):
            db.executescript(script)
    db.close()
    return path


def as_version_1(path: Path) -> Path:
    """Version 2 differs from it by this."""
    return write(path, "ALTER TABLE sessions DROP COLUMN head; UPDATE remora_schema SET version = 1")


def as_version_3(path: Path) -> Path:
    """This version differs from it by this; the program makes it out of version 2."""
    SqliteStore(write(path), vocabulary="toy").shut()
    with sqlite3.connect(path) as db:
        db.executescript(
            f"{NO_HOLDERS}; ALTER TABLE sessions DROP COLUMN weights; UPDATE remora_schema SET version = 3"
        )
    db.close()
    return path


def as_version_4(path: Path) -> Path:
    SqliteStore(write(path), vocabulary="toy").shut()
    with sqlite3.connect(path) as db:
        db.executescript(f"{NO_HOLDERS}; UPDATE remora_schema SET version = 4")
    db.close()
    return path


@pytest.mark.parametrize("older", [as_version_1, write, as_version_3, as_version_4])
def test_what_an_earlier_version_stored_is_there(older: object, tmp_path: Path) -> None:
    """T1: opened twice: the second time it is of this version."""
    path = older(tmp_path / "s.sqlite")  # type: ignore[operator]
    for _ in range(2):
        store = SqliteStore(path, vocabulary="toy")
        assert store.load("t", "empty", 1) == (EMPTY, [])
        assert store.load("ü", CHAT, 3) == (FULL, TURNS)
        figures = store.figures()
        assert (figures["sessions"], figures["turns"], figures["bytes"]) == (2, 4, BYTES)
        store.shut()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT version FROM remora_schema").fetchall() == [(SCHEMA_VERSION,)]
    db.close()


def test_an_earlier_versions_sessions_go_on(tmp_path: Path) -> None:
    """T1, S9, S10: turns are added and counted, generations go on, vocabularies are told apart."""
    path = write(tmp_path / "s.sqlite")
    with pytest.raises(StoreError, match="belong to toy"):
        SqliteStore(path, vocabulary="llama")
    store = SqliteStore(path, vocabulary="toy", limits=StoreLimits(session_bytes=BYTES + 212))
    options = {"owner": "w", "mode": SessionMode.TREE, "idle_timeout_s": None, "capacity_tokens": None}
    assert store.create("t", "new", now=1.0, **options).generation == 5  # type: ignore[arg-type]
    commits = [
        TurnCommit(tenant="ü", session_id=CHAT, generation=3, epoch=2, turn=one, tokens=9)
        for one in (turn(5, "r4", 6), turn(6, "r5", 9))
    ]
    assert store.commit(commits, 300.0) == [CommitStatus.OK, CommitStatus.SESSION_FULL]
    assert store.close("ü", CHAT, 3)
    assert store.figures()["bytes"] == 0
    store.shut()


def test_an_earlier_versions_file_gives_space_back_too(tmp_path: Path) -> None:
    path = write(tmp_path / "s.sqlite", "UPDATE turns SET input_ids = zeroblob(2000000)")
    before = path.stat().st_size
    store = SqliteStore(path)
    assert store.close("ü", CHAT, 3)
    store.shut()
    assert path.stat().st_size < before / 5


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """All of it or nothing: a column of this version is there already, so that the first step fails."""
    path = write(tmp_path / "s.sqlite", "CREATE TABLE results (surprise TEXT)")
    for _ in range(2):
        with pytest.raises(StoreError, match="results already exists"):
            SqliteStore(path)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT version FROM remora_schema").fetchall() == [(2,)]
        assert "bytes" not in [row[1] for row in db.execute("PRAGMA table_info(sessions)")]
    db.close()


def test_results_of_before_holders_were_counted_are_counted(tmp_path: Path) -> None:
    """S13, T2: whoever holds most makes room, whenever it came to hold it."""
    path = as_version_4(tmp_path / "s.sqlite")
    row = "VALUES ('flood', 'k' || ?, 'done', x'00', 'a', 1000 + ?, 60, zeroblob(600))"
    with sqlite3.connect(path) as db:
        db.executemany(
            f"INSERT INTO results (tenant, key, state, digest, owner, until, ttl_s, body) {row}", [(1, 1), (2, 2)]
        )
    db.close()
    store = SqliteStore(path, limits=StoreLimits(results_bytes=2000))
    put = {"digest": b"d", "owner": "a", "ttl_s": 60.0, "body": b"x" * 600}
    assert store.put_result("other", "k", now=1.0, **put) is PutStatus.STORED  # type: ignore[arg-type]
    kept = [store.get_result(*name, 2.0) for name in (("flood", "k1"), ("flood", "k2"), ("other", "k"))]
    assert [one.state.value if one else None for one in kept] == ["expired", "done", "done"]
    store.shut()
