"""What every store does at a fork and a rollback (rule S12)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

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
    TurnUnknown,
)
from tests.cluster.stores import KINDS, opened
from tests.sim.store import SimStore


@pytest.fixture(params=[*KINDS, "sim"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SessionStore]:
    if request.param == "sim":
        yield SimStore(lambda line: None)
        return
    with opened(request, tmp_path) as open_one:
        yield open_one()


def create(store: SessionStore, session_id: str = "s") -> SessionRecord:
    return store.create(
        "t", session_id, owner="w1", mode=SessionMode.TREE, idle_timeout_s=9.0, capacity_tokens=500, now=100.0
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


TREE = [turn(1, None, 0), turn(2, "r1", 3), turn(3, "r2", 2), turn(4, "r1", 3), turn(5, "r3", 5)]
"""r1 ─┬─ r2 ── r3 ── r5
       └─ r4        ; r3 keeps 2 tokens of r2's 6."""


def fill(store: SessionStore, record: SessionRecord, turns: list[TurnRecord]) -> None:
    commits = [
        TurnCommit(
            tenant="t",
            session_id=record.session_id,
            generation=record.generation,
            epoch=record.epoch,
            turn=one,
            tokens=8,
        )
        for one in turns
    ]
    assert store.commit(commits, 200.0) == [CommitStatus.OK] * len(turns)


def fork(
    store: SessionStore, source: SessionRecord, turn: str | None, new: str = "f", owner: str = "w1"
) -> SessionRecord:
    return store.fork(
        "t",
        new,
        source_id=source.session_id,
        source_generation=source.generation,
        turn=turn,
        owner=owner,
        now=300.0,
    )


def back(store: SessionStore, record: SessionRecord, turn: str) -> CommitStatus:
    return store.rollback("t", record.session_id, record.generation, epoch=record.epoch, turn=turn, now=400.0)


def test_a_fork_begins_with_the_chain_of_its_turn(store: SessionStore) -> None:
    """S12: rids and numbers stay, other branches are left out, the source is as it was."""
    source = create(store)
    fill(store, source, TREE)
    before = store.load("t", "s", source.generation)
    made = fork(store, source, "r3", owner="w2")
    assert (made.session_id, made.epoch, made.owner, made.head) == ("f", 1, "w2", "r3")
    assert made.generation > source.generation
    assert (made.mode, made.idle_timeout_s, made.capacity_tokens) == (SessionMode.TREE, 9.0, 500)
    assert (made.turns, made.tokens, made.last_active_at) == (3, 5, 300.0)
    assert store.load("t", "f", made.generation) == (made, TREE[:3])
    assert store.load("t", "s", source.generation) == before


def test_a_fork_without_a_turn_begins_at_the_head(store: SessionStore) -> None:
    source = create(store)
    fill(store, source, TREE)
    assert back(store, source, "r2") is CommitStatus.OK
    made = fork(store, source, None)
    assert (made.head, made.turns, made.tokens) == ("r2", 2, 6)


def test_fork_and_source_go_separate_ways(store: SessionStore) -> None:
    """S12, S9: each has its own turns from then on; closing one leaves the other."""
    source = create(store)
    fill(store, source, TREE[:2])
    made = fork(store, source, "r2")
    fill(store, source, [turn(3, "r2", 6)])
    mine = turn(3, "r2", 6, input_ids=(9,))
    fill(store, made, [mine])
    assert store.load("t", "f", made.generation)[1] == [*TREE[:2], mine]
    assert store.close("t", "s", source.generation) is True
    assert store.load("t", "f", made.generation)[1] == [*TREE[:2], mine]


def test_what_cannot_be_forked(store: SessionStore) -> None:
    source = create(store)
    with pytest.raises(TurnUnknown):
        fork(store, source, None)
    fill(store, source, TREE)
    with pytest.raises(TurnUnknown):
        fork(store, source, "r9")
    with pytest.raises(SessionExists):
        fork(store, source, "r1", new="s")
    with pytest.raises(SessionUnknown):
        fork(store, replace(source, session_id="other"), "r1")
    with pytest.raises(SessionUnknown):
        fork(store, replace(source, generation=source.generation + 1), "r1")
    assert [one.session_id for one in store.list_sessions("t")] == ["s"]


def test_a_rollback_forgets_what_continues_from_its_turn(store: SessionStore) -> None:
    """S12, S3: the head is the turn, its descendants are gone, other branches stay."""
    record = create(store)
    fill(store, record, TREE)
    assert back(store, record, "r2") is CommitStatus.OK
    after, turns = store.load("t", "s", record.generation)
    assert turns == [TREE[0], TREE[1], TREE[3]]
    assert (after.head, after.turns, after.tokens, after.last_active_at) == ("r2", 3, 6, 400.0)
    assert (after.owner, after.epoch) == (record.owner, record.epoch)


def test_a_rollback_done_twice_is_done_once(store: SessionStore) -> None:
    """Whoever got no answer asks again."""
    record = create(store)
    fill(store, record, TREE)
    assert back(store, record, "r2") is CommitStatus.OK
    once = store.load("t", "s", record.generation)
    assert back(store, record, "r2") is CommitStatus.OK
    assert store.load("t", "s", record.generation) == once


def test_a_turn_after_a_rollback_is_the_head_again(store: SessionStore) -> None:
    record = create(store)
    fill(store, record, TREE)
    back(store, record, "r1")
    assert store.get("t", "s").turns == 1
    fill(store, record, [turn(6, "r1", 3, rid="r2")])
    assert (store.get("t", "s").head, store.get("t", "s").turns) == ("r2", 2)


def test_a_rollback_of_a_former_owner_changes_nothing(store: SessionStore) -> None:
    """T3, S9: guarded by epoch and generation."""
    record = create(store)
    fill(store, record, TREE)
    store.acquire("t", "s", owner="w2", expected_epoch=1)
    before = store.load("t", "s", record.generation)
    assert back(store, record, "r1") is CommitStatus.STALE
    assert back(store, replace(record, epoch=2, generation=record.generation + 1), "r1") is CommitStatus.STALE
    assert back(store, replace(record, session_id="other"), "r1") is CommitStatus.STALE
    assert store.load("t", "s", record.generation) == before


def test_a_rollback_to_an_unknown_turn_changes_nothing(store: SessionStore) -> None:
    record = create(store)
    fill(store, record, TREE)
    before = store.load("t", "s", record.generation)
    with pytest.raises(TurnUnknown):
        back(store, record, "r9")
    assert store.load("t", "s", record.generation) == before
