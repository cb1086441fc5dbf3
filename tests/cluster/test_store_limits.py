"""Byte caps of every session store, and its size as it tells it (rule S10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.messages import Outcome, SessionMode
from actors.records import CommitStatus, SessionRecord, SessionStore, StoreFull, TurnCommit, TurnRecord
from cluster.store.limits import StoreLimits, bytes_of
from tests.cluster.stores import OpenStore, figures_of


def create(store: SessionStore, session_id: str = "s") -> SessionRecord:
    limits = {"idle_timeout_s": None, "capacity_tokens": None}
    return store.create("t", session_id, owner="w", mode=SessionMode.TREE, now=1.0, **limits)  # type: ignore[arg-type]


def turn(number: int, tokens: int = 100, **changed: object) -> TurnRecord:
    made = TurnRecord(
        rid=f"r{number}",
        number=number,
        parent=f"r{number - 1}" if number > 1 else None,
        keep=100 * (number - 1),
        input_ids=(7,) * (tokens - 1),
        output_ids=(8,),
        outcome=Outcome.STOP,
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def commit(store: SessionStore, record: SessionRecord, *turns: TurnRecord) -> list[CommitStatus]:
    return store.commit(
        [
            TurnCommit(
                tenant="t",
                session_id=record.session_id,
                generation=record.generation,
                epoch=record.epoch,
                turn=one,
                tokens=100 * one.number,
            )
            for one in turns
        ],
        2.0,
    )


def says(store: SessionStore, sizes: dict[str, int]) -> None:
    assert figures_of(store, *sizes) == sizes


def test_a_turn_counts_four_bytes_a_token_and_two_hundred() -> None:
    assert bytes_of(turn(1, tokens=100)) == 600


def test_a_turn_over_its_sessions_cap_is_refused_and_changes_nothing(open_store: OpenStore) -> None:
    """S10, S7: up to the cap exactly; other sessions go on."""
    store = open_store(limits=StoreLimits(session_bytes=1200))
    record, other = create(store), create(store, "other")
    assert commit(store, record, turn(1), turn(2)) == [CommitStatus.OK, CommitStatus.OK]
    before = store.load("t", "s", record.generation)
    assert commit(store, record, turn(3)) == [CommitStatus.SESSION_FULL]
    assert store.load("t", "s", record.generation) == before
    assert commit(store, record, turn(2)) == [CommitStatus.OK], "a repeat of what is stored needs no room"
    assert commit(store, other, turn(1)) == [CommitStatus.OK]


def test_a_turn_that_replaces_others_needs_only_the_difference(open_store: OpenStore) -> None:
    store = open_store(limits=StoreLimits(session_bytes=1200))
    record = create(store)
    commit(store, record, turn(1), turn(2))
    instead = turn(3, rid="r3", parent="r1", keep=100, dropped=("r2",))
    assert commit(store, record, replace(instead, input_ids=(7,) * 100)) == [CommitStatus.SESSION_FULL]
    assert commit(store, record, instead) == [CommitStatus.OK]
    assert [one.rid for one in store.load("t", "s", record.generation)[1]] == ["r1", "r3"]


def test_a_turn_over_the_cap_of_all_is_refused_until_something_is_closed(open_store: OpenStore) -> None:
    store = open_store(limits=StoreLimits(total_bytes=1800))
    first, second = create(store), create(store, "second")
    assert commit(store, first, turn(1), turn(2)) == [CommitStatus.OK] * 2
    assert commit(store, second, turn(1), turn(2)) == [CommitStatus.OK, CommitStatus.STORE_FULL]
    assert store.close("t", "s", first.generation)
    assert commit(store, second, turn(2), turn(3)) == [CommitStatus.OK] * 2
    assert commit(store, second, turn(4)) == [CommitStatus.STORE_FULL]


def test_a_rollback_makes_room(open_store: OpenStore) -> None:
    store = open_store(limits=StoreLimits(session_bytes=1200, total_bytes=1200))
    record = create(store)
    commit(store, record, turn(1), turn(2))
    assert store.rollback("t", "s", record.generation, epoch=1, turn="r1", now=3.0) is CommitStatus.OK
    assert commit(store, record, turn(2, rid="other")) == [CommitStatus.OK]
    assert commit(store, record, turn(3, parent="other")) == [CommitStatus.SESSION_FULL]


def test_a_fork_that_finds_no_room_is_refused_whole(open_store: OpenStore) -> None:
    """S12: a fork counts as what it copies."""
    store = open_store(limits=StoreLimits(total_bytes=1800))
    record = create(store)
    commit(store, record, turn(1), turn(2))
    source = {"source_id": "s", "source_generation": record.generation, "owner": "w", "now": 3.0}
    with pytest.raises(StoreFull, match="byte cap"):
        store.fork("t", "f", turn="r2", **source)  # type: ignore[arg-type]
    assert [one.session_id for one in store.list_sessions("t")] == ["s"]
    assert store.fork("t", "f", turn="r1", **source).turns == 1  # type: ignore[arg-type]
    assert commit(store, record, turn(3)) == [CommitStatus.STORE_FULL]


def test_what_is_held_is_known_after_the_store_was_opened_anew(open_store: OpenStore) -> None:
    store = open_store(limits=StoreLimits(total_bytes=1200))
    record = create(store)
    commit(store, record, turn(1))
    store.shut()
    again = open_store(limits=StoreLimits(total_bytes=1200))
    assert commit(again, record, turn(2), turn(3)) == [CommitStatus.OK, CommitStatus.STORE_FULL]


def test_without_caps_nothing_is_refused(open_store: OpenStore) -> None:
    """C2: off means off."""
    store = open_store(limits=StoreLimits())
    assert commit(store, create(store), turn(1, tokens=100_000)) == [CommitStatus.OK]


def test_figures_follow_what_is_held(store: SessionStore) -> None:
    record = create(store)
    create(store, "other")
    commit(store, record, turn(1), turn(2), turn(3))
    commit(store, record, turn(4, parent="r2", keep=200, dropped=("r3", "never-was")))
    source = {"source_id": "s", "source_generation": record.generation, "turn": "r2", "owner": "w", "now": 3.0}
    store.fork("t", "f", **source)  # type: ignore[arg-type]
    says(store, {"sessions": 3, "turns": 5, "bytes": 3000})
    store.rollback("t", "s", record.generation, epoch=1, turn="r1", now=3.0)
    store.put_result("t", "k", digest=b"d", owner="a", body=b"123", now=1.0, ttl_s=9.0)
    says(store, {"turns": 3, "bytes": 1800, "results": 1, "result_bytes": 203})
    for one in store.list_sessions("t"):
        store.close("t", one.session_id, one.generation)
    says(store, {"sessions": 0, "turns": 0, "bytes": 0})
