"""What every session store does (`tests/cluster/stores.py`). Each implementation that is added there must pass all of
it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from actors.messages import Outcome, SessionMode
from actors.records import (
    CommitStatus,
    SessionExists,
    SessionRecord,
    SessionStore,
    SessionUnknown,
    TurnCommit,
    TurnRecord,
)


def create(store: SessionStore, session_id: str = "s", tenant: str = "t", **changed: object) -> SessionRecord:
    options: dict[str, object] = {
        "owner": "w1",
        "mode": SessionMode.TREE,
        "idle_timeout_s": None,
        "capacity_tokens": None,
        "now": 100.0,
        **changed,
    }
    return store.create(tenant, session_id, **options)  # type: ignore[arg-type]


def turn(number: int, **changed: object) -> TurnRecord:
    fields: dict[str, object] = {
        "rid": f"r{number}",
        "number": number,
        "parent": f"r{number - 1}" if number > 1 else None,
        "keep": 4 * (number - 1),
        "input_ids": (1, 2, number),
        "output_ids": (2**31 - 1,),
        "outcome": Outcome.STOP,
        "digest": b"\x00\xff",
        **changed,
    }
    return TurnRecord(**fields)  # type: ignore[arg-type]


def commit_of(record: SessionRecord, turn: TurnRecord, tokens: int = 4) -> TurnCommit:
    return TurnCommit(
        tenant=record.tenant,
        session_id=record.session_id,
        generation=record.generation,
        epoch=record.epoch,
        turn=turn,
        tokens=tokens,
    )


def all_at_once(count: int, work: Callable[[int], object]) -> list[object]:
    start = threading.Barrier(count)

    def one(number: int) -> object:
        start.wait()
        try:
            return work(number)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))


def test_a_created_session_is_found_as_it_was_made(store: SessionStore) -> None:
    made = create(store, "чат 🪶\u202f%s", mode=SessionMode.STREAMING, idle_timeout_s=1.5, capacity_tokens=7)
    assert made.epoch == 1
    assert (made.turns, made.tokens, made.last_active_at) == (0, 0, 100.0)
    assert (made.mode, made.idle_timeout_s, made.capacity_tokens) == (SessionMode.STREAMING, 1.5, 7)
    assert store.get("t", made.session_id) == made
    assert store.load("t", made.session_id, made.generation) == (made, [])


def test_an_open_id_cannot_be_opened_again(store: SessionStore) -> None:
    """S5: session case B02: and what is open stays as it was."""
    made = create(store)
    with pytest.raises(SessionExists):
        create(store, owner="w2")
    assert store.get("t", "s") == made


def test_tenants_do_not_see_each_other(store: SessionStore) -> None:
    """S13: ids are scoped by tenant."""
    mine, other = create(store), create(store, tenant="u")
    assert mine.generation != other.generation
    assert store.list_sessions("t") == [mine]
    assert store.close("u", "s", mine.generation) is False
    assert store.get("u", "s") == other


def test_what_was_never_opened_is_unknown(store: SessionStore) -> None:
    with pytest.raises(SessionUnknown):
        store.get("t", "s")
    with pytest.raises(SessionUnknown):
        store.load("t", "s", 1)
    with pytest.raises(SessionUnknown):
        store.acquire("t", "s", owner="w1", expected_epoch=1)
    assert store.close("t", "s", 1) is False


def test_a_session_keeps_the_weights_of_its_last_turn(store: SessionStore) -> None:
    """T6: through whatever else happens to it; a fork begins with those of its source."""
    record = create(store)
    assert record.weights == ""
    for number, weights in ((1, "v1"), (2, "v2 ü")):
        commit = replace(commit_of(record, turn(number)), weights=weights)
        store.commit([commit, commit], now=100.0)
        assert store.get("t", "s").weights == weights
    moved = store.acquire("t", "s", owner="w2", expected_epoch=1)
    store.rollback("t", "s", record.generation, epoch=2, turn="r1", now=100.0)
    options = {"source_id": "s", "source_generation": record.generation, "turn": None, "owner": "w3", "now": 100.0}
    fork = store.fork("t", "fork", **options)  # type: ignore[arg-type]
    listed = store.list_sessions("t")
    assert [one.weights for one in (moved, fork, *listed)] == ["v2 ü"] * 4


def test_a_turn_that_is_not_stored_changes_no_weights(store: SessionStore) -> None:
    """T3: the epoch is another owner's."""
    record = create(store)
    stale = replace(commit_of(record, turn(1)), weights="old", epoch=7)
    assert store.commit([stale], now=100.0) == [CommitStatus.STALE]
    assert store.get("t", "s").weights == ""


def test_a_generation_is_never_used_again(store: SessionStore) -> None:
    """S9: a reopened id is a new session."""
    seen = set()
    for _ in range(3):
        made = create(store)
        seen.add(made.generation)
        assert store.close("t", "s", made.generation) is True
    assert len(seen) == 3
    assert create(store).generation > max(seen)


def test_a_close_of_an_older_session_leaves_the_new_one_alone(store: SessionStore) -> None:
    """S9: a late event of the old session never reaches the new one."""
    old = create(store)
    store.close("t", "s", old.generation)
    new = create(store)
    assert store.close("t", "s", old.generation) is False
    assert store.commit([commit_of(old, turn(1))], 200.0) == [CommitStatus.STALE]
    assert store.get("t", "s") == new
    with pytest.raises(SessionUnknown):
        store.load("t", "s", old.generation)


def test_who_lost_a_session_cannot_delete_it(store: SessionStore) -> None:
    """T3: an old owner's idle clock does not close the session of a new one."""
    made = create(store)
    moved = store.acquire("t", "s", owner="w2", expected_epoch=1)
    assert store.close("t", "s", made.generation, epoch=made.epoch) is False
    assert store.get("t", "s") == moved
    assert store.close("t", "s", made.generation, epoch=moved.epoch) is True


def test_closing_forgets_the_turns(store: SessionStore) -> None:
    old = create(store)
    store.commit([commit_of(old, turn(1))], 200.0)
    store.close("t", "s", old.generation)
    new = create(store)
    assert store.load("t", "s", new.generation) == (new, [])


def test_committed_turns_come_back_in_order_and_whole(store: SessionStore) -> None:
    """S1: history is token ids."""
    record = create(store)
    turns = [turn(1), turn(2, matched="\n\n", cached_tokens=3, input_ids=()), turn(5, outcome=Outcome.LENGTH)]
    for index, one in enumerate(turns):
        assert store.commit([commit_of(record, one, tokens=10 * index)], 200.0 + index) == [CommitStatus.OK]
    after, loaded = store.load("t", "s", record.generation)
    assert loaded == turns
    assert (after.turns, after.tokens, after.last_active_at) == (3, 20, 202.0)


def test_a_commit_may_be_repeated(store: SessionStore) -> None:
    """T1: whoever got no answer to a commit sends it again."""
    record = create(store)
    commit = commit_of(record, turn(1))
    assert store.commit([commit], 200.0) == [CommitStatus.OK]
    before = store.get("t", "s")
    assert store.commit([commit, commit], 300.0) == [CommitStatus.OK, CommitStatus.OK]
    assert store.get("t", "s") == before


def test_an_older_epoch_cannot_commit(store: SessionStore) -> None:
    """T3: the store refuses a commit of an older epoch."""
    old = create(store)
    store.commit([commit_of(old, turn(1))], 200.0)
    new = store.acquire("t", "s", owner="w2", expected_epoch=1)
    assert (new.owner, new.epoch, new.generation, new.turns) == ("w2", 2, old.generation, 1)
    late, good = commit_of(old, turn(2)), commit_of(new, turn(2, output_ids=(9,)))
    assert store.commit([late, good], 300.0) == [CommitStatus.STALE, CommitStatus.OK]
    assert store.commit([late], 300.0) == [CommitStatus.STALE]
    assert store.load("t", "s", new.generation)[1] == [turn(1), turn(2, output_ids=(9,))]


def test_a_repeat_of_what_was_stored_is_ok_for_an_older_epoch_too(store: SessionStore) -> None:
    """T1: the turn is durable, whoever owns the session by now."""
    old = create(store)
    store.commit([commit_of(old, turn(1))], 200.0)
    store.acquire("t", "s", owner="w2", expected_epoch=1)
    assert store.commit([commit_of(old, turn(1))], 300.0) == [CommitStatus.OK]


def test_dropped_turns_go_with_the_turn_that_replaces_them(store: SessionStore) -> None:
    """S3: `replace` drops the descendants."""
    record = create(store)
    for number in (1, 2, 3):
        store.commit([commit_of(record, turn(number))], 200.0)
    replacing = turn(4, rid="r3", parent="r1", dropped=("r2", "r3", "never-was"))
    assert store.commit([commit_of(record, replacing, tokens=8)], 300.0) == [CommitStatus.OK]
    after, turns = store.load("t", "s", record.generation)
    assert turns == [turn(1), replacing]
    assert (after.turns, after.tokens) == (2, 8)


def test_a_batch_commits_each_turn_by_its_own_session(store: SessionStore) -> None:
    records = [create(store, name) for name in "abc"]
    store.close("t", "b", records[1].generation)
    statuses = store.commit([commit_of(record, turn(1)) for record in records], 200.0)
    assert statuses == [CommitStatus.OK, CommitStatus.STALE, CommitStatus.OK]
    assert [record.turns for record in store.list_sessions("t")] == [1, 1]
    assert store.commit([], 200.0) == []


def test_acquire_with_an_old_epoch_tells_who_was_faster(store: SessionStore) -> None:
    create(store)
    winner = store.acquire("t", "s", owner="w2", expected_epoch=1)
    assert store.acquire("t", "s", owner="w3", expected_epoch=1) == winner


def test_of_many_creates_at_once_exactly_one_wins(store: SessionStore) -> None:
    """S5: session case B04: two first turns at the same instant."""
    results = all_at_once(8, lambda number: create(store, owner=f"w{number}"))
    made = [result for result in results if isinstance(result, SessionRecord)]
    assert len(made) == 1
    assert sum(isinstance(result, SessionExists) for result in results) == 7
    assert store.get("t", "s") == made[0]


def test_of_many_acquires_at_once_exactly_one_raises_the_epoch(store: SessionStore) -> None:
    """T3: one owner, under one epoch."""
    create(store)
    results = all_at_once(8, lambda number: store.acquire("t", "s", owner=f"w{number}", expected_epoch=1))
    assert len(set(results)) == 1
    assert store.get("t", "s") == results[0]
    assert store.get("t", "s").epoch == 2


def test_many_threads_commit_at_once_and_nothing_is_lost(store: SessionStore) -> None:
    records = [create(store, f"s{number}") for number in range(8)]

    def work(number: int) -> object:
        for count in range(1, 6):
            store.commit([commit_of(records[number], turn(count))], 200.0)
        return None

    assert all_at_once(8, work) == [None] * 8
    assert [record.turns for record in store.list_sessions("t")] == [5] * 8


def test_listing_pages_through_the_ids_in_order(store: SessionStore) -> None:
    """S11: introspection."""
    names = ["b", "a", "ä", "B", "a/b", "🪶"]
    for name in names:
        create(store, name)
    create(store, "zzz", tenant="u")
    listed: list[str] = []
    while page := store.list_sessions("t", after=listed[-1] if listed else "", limit=2):
        listed += [record.session_id for record in page]
    assert listed == sorted(names)
    assert (store.count("t"), store.count("u"), store.count("v")) == (6, 1, 0)


def test_owned_by_follows_the_owner(store: SessionStore) -> None:
    create(store, "a")
    create(store, "b")
    create(store, "c", owner="w2")
    store.acquire("t", "b", owner="w2", expected_epoch=1)
    assert [record.session_id for record in store.owned_by("w1")] == ["a"]
    assert [record.session_id for record in store.owned_by("w2")] == ["b", "c"]
    assert store.owned_by("w3") == []


def test_a_session_expires_by_its_own_timeout_counted_from_its_last_turn(store: SessionStore) -> None:
    """S8: the idle clock starts when the last turn ends; C2: off means off."""
    record = create(store, "short", idle_timeout_s=10.0)
    create(store, "unused", idle_timeout_s=15.0)
    create(store, "off", idle_timeout_s=0.0)
    create(store, "none", idle_timeout_s=None)
    assert store.expired(109.9) == []
    assert [one.session_id for one in store.expired(1e9)] == ["short", "unused"]
    store.commit([commit_of(record, turn(1))], 150.0)
    assert [one.session_id for one in store.expired(115.0)] == ["unused"]
    assert [one.session_id for one in store.expired(160.0)] == ["unused", "short"]
    assert [one.session_id for one in store.expired(160.0, limit=1)] == ["unused"]
