"""From the engine's effects to the store and back: what the store says reaches the engine as it was said."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.engine.effects import EffectResult, ForgetSession, LoadSession, StoreTurn, TurnStored
from actors.messages import Outcome, SessionMode
from actors.records import CommitStatus, SessionRecord, TurnCommit, TurnRecord
from actors.worker.store_effects import StoreEffects
from cluster.store.limits import StoreLimits
from cluster.store.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "sessions.sqlite")
    yield opened
    opened.shut()


@pytest.fixture
def mail() -> queue.SimpleQueue[EffectResult]:
    return queue.SimpleQueue()


@pytest.fixture
def effects(store: SqliteStore, mail: queue.SimpleQueue[EffectResult]) -> Iterator[StoreEffects]:
    made = StoreEffects(store, mail.put, lambda: 100.0)
    yield made
    made.close()


def create(store: SqliteStore) -> SessionRecord:
    return store.create(
        "t", "s", owner="w1", mode=SessionMode.STREAMING, idle_timeout_s=None, capacity_tokens=None, now=100.0
    )


def storing(record: SessionRecord, number: int = 1) -> StoreTurn:
    turn = TurnRecord(
        rid=f"r{number}",
        number=number,
        parent=None,
        keep=0,
        input_ids=(1, 2),
        output_ids=(3,),
        outcome=Outcome.STOP,
        digest=b"",
    )
    commit = TurnCommit(
        tenant="t", session_id="s", generation=record.generation, epoch=record.epoch, turn=turn, tokens=3
    )
    return StoreTurn(session=5, uid=number, commit=commit)


def test_stored_turns_are_told_one_by_one(
    store: SqliteStore, effects: StoreEffects, mail: queue.SimpleQueue[EffectResult]
) -> None:
    """T1."""
    record = create(store)
    for number in (1, 2, 3):
        effects.perform(storing(record, number))
    assert [mail.get(timeout=60) for _ in range(3)] == [TurnStored(session=5, uid=n) for n in (1, 2, 3)]
    assert [turn.rid for turn in store.load("t", "s", record.generation)[1]] == ["r1", "r2", "r3"]


def test_a_turn_that_the_store_has_no_room_for_is_told_as_that(
    tmp_path: Path, mail: queue.SimpleQueue[EffectResult]
) -> None:
    """S10: and what was stored with it in one batch is told as stored."""
    store = SqliteStore(tmp_path / "small.sqlite", limits=StoreLimits(session_bytes=450))
    effects = StoreEffects(store, mail.put, lambda: 100.0)
    record = create(store)
    for number in (1, 2, 3):
        effects.perform(storing(record, number))
    full = TurnStored(session=5, uid=3, full=CommitStatus.SESSION_FULL)
    assert [mail.get(timeout=60) for _ in range(3)] == [*(TurnStored(session=5, uid=n) for n in (1, 2)), full]
    effects.close()
    store.shut()


def test_commit_of_an_older_epoch_is_told_as_stale(
    store: SqliteStore, effects: StoreEffects, mail: queue.SimpleQueue[EffectResult]
) -> None:
    """T3: the store refuses it, and the engine hears so."""
    record = create(store)
    store.acquire("t", "s", owner="w2", expected_epoch=record.epoch)
    effects.perform(storing(record))
    assert mail.get(timeout=60) == TurnStored(session=5, uid=1, stale=True)


def test_store_that_fails_is_told_as_an_error(
    store: SqliteStore, effects: StoreEffects, mail: queue.SimpleQueue[EffectResult]
) -> None:
    """T1, T6: no turn is told as stored, and no history as empty."""
    record = create(store)
    store.shut()
    effects.perform(storing(record))
    stored = mail.get(timeout=60)
    assert (stored.error != "", stored.stale) == (True, False)
    effects.perform(LoadSession(session=5, tenant="t", session_id="s", generation=record.generation))
    loaded = mail.get(timeout=60)
    assert (loaded.record, loaded.error != "") == (None, True)
    effects.perform(ForgetSession(session=5, tenant="t", session_id="s", generation=record.generation, epoch=1))
    assert mail.get(timeout=60).error != ""


def test_loaded_history_is_whole_and_an_unknown_session_is_no_error(
    store: SqliteStore, effects: StoreEffects, mail: queue.SimpleQueue[EffectResult]
) -> None:
    """S1, T6."""
    record = create(store)
    effects.perform(storing(record))
    mail.get(timeout=60)
    effects.perform(LoadSession(session=5, tenant="t", session_id="s", generation=record.generation))
    loaded = mail.get(timeout=60)
    assert (loaded.record.turns, [turn.rid for turn in loaded.turns]) == (1, ["r1"])
    effects.perform(LoadSession(session=6, tenant="t", session_id="s", generation=record.generation + 1))
    unknown = mail.get(timeout=60)
    assert (unknown.session, unknown.record, unknown.error) == (6, None, "")
