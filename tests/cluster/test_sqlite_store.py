"""What only the SQLite store has: a file, and all that can go wrong with one."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from actors.messages import Outcome, SessionMode
from actors.records import SessionUnknown, StoreError, TurnCommit, TurnRecord
from cluster.store.open import open_store, sqlite_path
from cluster.store.sqlite import SqliteStore

WRITER = """
import sys
from actors.messages import Outcome, SessionMode
from actors.records import TurnCommit, TurnRecord
from cluster.store.sqlite import SqliteStore

store = SqliteStore(sys.argv[1])
options = dict(owner="w", mode=SessionMode.TREE, idle_timeout_s=None, capacity_tokens=None, now=1.0)
records = [store.create("t", f"s{n}", **options) for n in range(3)]
for number in range(1, 100_000):
    turn = TurnRecord(rid=f"r{number}", number=number, parent=None, keep=0, input_ids=tuple(range(500)),
                      output_ids=(number,), outcome=Outcome.STOP)
    store.commit([TurnCommit(tenant="t", session_id=r.session_id, generation=r.generation, epoch=1, turn=turn,
                             tokens=501) for r in records], 2.0)
    print(number, flush=True)
"""


def a_commit(store: SqliteStore, size: int = 1, number: int = 1) -> TurnCommit:
    """A turn of session `s`, which is opened if need be."""
    try:
        record = store.get("t", "s")
    except SessionUnknown:
        record = store.create(
            "t", "s", owner="w", mode=SessionMode.TREE, idle_timeout_s=None, capacity_tokens=None, now=1.0
        )
    turn = TurnRecord(
        rid=f"r{number}",
        number=number,
        parent=None,
        keep=0,
        input_ids=(7,) * size,
        output_ids=(),
        outcome=Outcome.STOP,
    )
    return TurnCommit(tenant="t", session_id="s", generation=record.generation, epoch=1, turn=turn, tokens=size)


@pytest.mark.parametrize("acknowledged", [1, 20])
def test_a_process_killed_between_commits_loses_nothing_it_was_told_is_stored(
    tmp_path: Path, acknowledged: int
) -> None:
    """T1: killing any process loses nothing that was acknowledged; a batch is stored whole or not at all."""
    path = tmp_path / "s.sqlite"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
    )
    assert writer.stdout is not None
    while int(writer.stdout.readline()) < acknowledged:
        pass
    writer.send_signal(signal.SIGKILL)
    told = [int(line) for line in writer.stdout.read().splitlines() if line]
    writer.wait()
    last_told = max([acknowledged, *told])
    store = SqliteStore(path)
    turns = [store.load("t", record.session_id, record.generation)[1] for record in store.list_sessions("t")]
    store.shut()
    numbers = [[turn.number for turn in one] for one in turns]
    assert numbers[0] == list(range(1, len(numbers[0]) + 1))
    assert len(numbers[0]) in (last_told, last_told + 1)
    assert numbers == [numbers[0]] * 3
    assert turns[0][-1].input_ids == tuple(range(500))


def test_the_file_outlives_its_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "deep" / "er" / "s.sqlite")
    commit = a_commit(store)
    store.commit([commit], 2.0)
    store.shut()
    again = SqliteStore(tmp_path / "deep" / "er" / "s.sqlite")
    assert again.load("t", "s", commit.generation)[1] == [commit.turn]
    again.shut()


def test_a_file_has_one_owner_at_a_time(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path / "s.sqlite")
    with pytest.raises(StoreError, match="another process has it open"):
        SqliteStore(tmp_path / "s.sqlite", lock_wait_s=0.05)
    first.shut()
    SqliteStore(tmp_path / "s.sqlite", lock_wait_s=0.05).shut()


def test_a_file_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    SqliteStore(path).shut()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE remora_schema SET version = 99")
    db.close()
    with pytest.raises(StoreError, match="version 99"):
        SqliteStore(path)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT version FROM remora_schema").fetchall() == [(99,)]
    db.close()


def test_a_file_that_is_no_database_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    path.write_bytes(b"this is a diary, not a database. " * 100)
    with pytest.raises(StoreError, match=r"s\.sqlite.*not a database"):
        SqliteStore(path)
    assert path.read_bytes().startswith(b"this is a diary")


def test_somebody_elses_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE birds (name TEXT)")
    db.close()
    with pytest.raises(StoreError, match="birds"):
        SqliteStore(path)


def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        SqliteStore(tmp_path / "file" / "s.sqlite")


def test_a_full_disk_fails_the_whole_batch_and_later_ones_work(tmp_path: Path) -> None:
    """T1: a turn that could not be stored is not told as done."""
    store = SqliteStore(tmp_path / "s.sqlite")
    small = a_commit(store)
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages + 4}")
    with pytest.raises(StoreError, match="full"):
        store.commit([small, a_commit(store, size=100_000, number=2)], 2.0)
    assert store.load("t", "s", small.generation)[1] == []
    store.commit([small], 3.0)
    assert store.load("t", "s", small.generation)[1] == [small.turn]
    store.shut()


def test_values_that_do_not_fit_are_store_errors_and_change_nothing(tmp_path: Path) -> None:
    """I1: nothing may wedge the store."""
    store = SqliteStore(tmp_path / "s.sqlite")
    options = {"owner": "w", "mode": SessionMode.TREE, "idle_timeout_s": None, "now": 1.0}
    with pytest.raises(StoreError):
        store.create("t", "s", capacity_tokens=2**70, **options)  # type: ignore[arg-type]
    with pytest.raises(StoreError):
        store.create("t", "\ud800", capacity_tokens=None, **options)  # type: ignore[arg-type]
    assert store.count("t") == 0
    store.shut()


def test_a_torn_row_is_a_store_error_and_not_a_wrong_history(tmp_path: Path) -> None:
    """T6: a turn never silently runs without its history."""
    store = SqliteStore(tmp_path / "s.sqlite")
    commit = a_commit(store)
    store.commit([commit], 2.0)
    store._db.execute("UPDATE turns SET input_ids = x'0102'")
    with pytest.raises(StoreError):
        store.load("t", "s", commit.generation)
    store.shut()


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.sqlite")
    store.shut()
    with pytest.raises(StoreError):
        store.get("t", "s")


def test_the_default_file_lies_in_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert sqlite_path("") == tmp_path / "remora" / "sessions.sqlite"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert sqlite_path("") == tmp_path / "home" / ".local" / "state" / "remora" / "sessions.sqlite"
    assert sqlite_path("sqlite:~/x.db") == tmp_path / "home" / "x.db"


@pytest.mark.parametrize("url", ["postgres://x", "sqlite:", "sessions.sqlite"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(StoreError, match="sqlite:PATH"):
        open_store(url)


def test_sessions_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    """T6: token ids of one model are not history to another; an empty file may change hands."""
    path = tmp_path / "s.sqlite"
    SqliteStore(path, vocabulary="llama").shut()
    store = SqliteStore(path, vocabulary="qwen")
    record = store.create(
        "t", "s", owner="w", mode=SessionMode.TREE, idle_timeout_s=None, capacity_tokens=None, now=0.0
    )
    store.shut()
    with pytest.raises(StoreError, match="1 sessions belong to qwen; this is llama"):
        SqliteStore(path, vocabulary="llama")
    SqliteStore(path).shut()
    store = SqliteStore(path, vocabulary="qwen")
    assert store.close("t", "s", record.generation)
    store.shut()
    SqliteStore(path, vocabulary="llama").shut()


def test_each_model_has_a_default_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert sqlite_path("", "sessions-toy") == tmp_path / "remora" / "sessions-toy.sqlite"
