"""The store against a dictionary, whatever the order of calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from actors.messages import Outcome, SessionMode
from actors.records import (
    CommitStatus,
    SessionExists,
    SessionRecord,
    SessionUnknown,
    TurnCommit,
    TurnRecord,
    TurnUnknown,
)
from cluster.store.limits import bytes_of
from cluster.store.open import ShutStore
from tests.cluster.stores import KINDS, figures_of, opener
from tests.sim.store import context

names = st.sampled_from(["a", "b", "ß"])
owners = st.sampled_from(["w1", "w2"])
epochs = st.integers(1, 4)
small = st.integers(0, 3)


@dataclass
class Modelled:
    record: SessionRecord
    turns: list[TurnRecord] = field(default_factory=list)


class StoreMachine(RuleBasedStateMachine):
    """T3, S9: epochs and generations guard every change; the store says the same after it was opened anew."""

    def __init__(self, open_store: Callable[[], ShutStore]) -> None:
        super().__init__()
        self.open_store = open_store
        self.store = open_store()
        self.sessions: dict[str, Modelled] = {}
        self.generation = 0
        self.now = 0.0

    def teardown(self) -> None:
        self.store.shut()

    @rule(name=names, owner=owners, idle=st.sampled_from([None, 0.0, 3.0]))
    def create(self, name: str, owner: str, idle: float | None) -> None:
        self.now += 1
        options = {"owner": owner, "mode": SessionMode.TREE, "idle_timeout_s": idle, "capacity_tokens": None}
        if name in self.sessions:
            with pytest.raises(SessionExists):
                self.store.create("t", name, now=self.now, **options)  # type: ignore[arg-type]
            return
        record = self.store.create("t", name, now=self.now, **options)  # type: ignore[arg-type]
        assert record.generation > self.generation
        self.generation = record.generation
        self.sessions[name] = Modelled(record)

    @rule(name=names, owner=owners, epoch=epochs)
    def acquire(self, name: str, owner: str, epoch: int) -> None:
        if name not in self.sessions:
            with pytest.raises(SessionUnknown):
                self.store.acquire("t", name, owner=owner, expected_epoch=epoch)
            return
        known = self.sessions[name]
        if known.record.epoch == epoch:
            known.record = replace(known.record, owner=owner, epoch=epoch + 1)
        assert self.store.acquire("t", name, owner=owner, expected_epoch=epoch) == known.record

    @precondition(lambda self: self.sessions)
    @rule(
        name=names, epoch=epochs, old=st.booleans(), drop=st.booleans(), repeat=st.booleans(), branch=small, keep=small
    )
    def commit(self, name: str, epoch: int, old: bool, drop: bool, repeat: bool, branch: int, keep: int) -> None:
        self.now += 1
        known = self.sessions.get(name)
        generation = known.record.generation if known else self.generation
        turns = known.turns if known else []
        last = max((turn.number for turn in turns), default=0)
        drop = drop and bool(turns) and all(turn.parent != turns[-1].rid for turn in turns)
        rids = [turn.rid for turn in turns if not drop or turn is not turns[-1]]
        parent = rids[branch % len(rids)] if rids and branch else None
        turn = TurnRecord(
            rid=f"r{last + 1}",
            number=last + 1,
            parent=parent,
            keep=keep,
            input_ids=(last,),
            output_ids=(epoch,),
            outcome=Outcome.STOP,
            dropped=(turns[-1].rid,) if drop else (),
        )
        if repeat and turns:
            turn = turns[-1]
        commit = TurnCommit(
            tenant="t", session_id=name, generation=generation - old, epoch=epoch, turn=turn, tokens=last
        )
        expected = CommitStatus.STALE
        if known and not old and turn in turns:
            expected = CommitStatus.OK
        elif known and not old and known.record.epoch == epoch:
            expected = CommitStatus.OK
            known.turns = [one for one in turns if one.rid not in turn.dropped] + [turn]
            known.record = replace(
                known.record, turns=len(known.turns), tokens=last, last_active_at=self.now, head=turn.rid
            )
        assert self.store.commit([commit], self.now) == [expected]

    @precondition(lambda self: self.sessions)
    @rule(name=names, old=st.booleans())
    def close(self, name: str, old: bool) -> None:
        known = self.sessions.get(name)
        generation = (known.record.generation if known else self.generation) - old
        hit = known is not None and not old
        assert self.store.close("t", name, generation) is hit
        if hit:
            del self.sessions[name]

    @precondition(lambda self: self.sessions)
    @rule(name=names, epoch=epochs, old=st.booleans(), which=small)
    def roll_back(self, name: str, epoch: int, old: bool, which: int) -> None:
        self.now += 1
        known = self.sessions.get(name)
        generation = (known.record.generation if known else self.generation) - old
        if known is None or old or known.record.epoch != epoch:
            answer = self.store.rollback("t", name, generation, epoch=epoch, turn="r1", now=self.now)
            assert answer is CommitStatus.STALE
            return
        if which >= len(known.turns):
            with pytest.raises(TurnUnknown):
                self.store.rollback("t", name, generation, epoch=epoch, turn="never-was", now=self.now)
            return
        head = known.turns[which]
        below = {head.rid}
        for turn in known.turns:
            if turn.parent in below:
                below.add(turn.rid)
        known.turns = [turn for turn in known.turns if turn is head or turn.rid not in below]
        length = len(context(known.turns, head.rid))
        known.record = replace(
            known.record, turns=len(known.turns), tokens=length, last_active_at=self.now, head=head.rid
        )
        answer = self.store.rollback("t", name, generation, epoch=epoch, turn=head.rid, now=self.now)
        assert answer is CommitStatus.OK

    @precondition(lambda self: self.sessions)
    @rule(name=names, source=names, owner=owners, which=small)
    def fork(self, name: str, source: str, owner: str, which: int) -> None:
        self.now += 1
        known = self.sessions.get(source)
        turn = known.turns[which % len(known.turns)] if known and known.turns else None
        rid = turn.rid if turn else None
        options = {"source_id": source, "turn": rid, "owner": owner, "now": self.now}
        generation = known.record.generation if known else self.generation
        expected = SessionExists if name in self.sessions else TurnUnknown if known else SessionUnknown
        if name in self.sessions or known is None or turn is None:
            with pytest.raises(expected):
                self.store.fork("t", name, source_generation=generation, **options)  # type: ignore[arg-type]
            return
        made = self.store.fork("t", name, source_generation=generation, **options)  # type: ignore[arg-type]
        assert made.generation > self.generation
        self.generation = made.generation
        chain = [turn]
        while chain[0].parent is not None:
            chain.insert(0, next(one for one in known.turns if one.rid == chain[0].parent))
        expected_record = replace(
            known.record,
            session_id=name,
            generation=made.generation,
            epoch=1,
            owner=owner,
            turns=len(chain),
            tokens=len(context(chain, rid)),
            last_active_at=self.now,
            head=rid,
        )
        assert made == expected_record
        self.sessions[name] = Modelled(made, chain)

    @rule()
    def open_it_anew(self) -> None:
        self.store.shut()
        self.store = self.open_store()

    @invariant()
    def says_what_the_model_says(self) -> None:
        expected = [self.sessions[name].record for name in sorted(self.sessions)]
        assert self.store.list_sessions("t") == expected
        assert self.store.count("t") == len(expected)
        turns = [turn for one in self.sessions.values() for turn in one.turns]
        sizes = {"sessions": len(expected), "turns": len(turns), "bytes": sum(map(bytes_of, turns))}
        assert figures_of(self.store, *sizes) == sizes
        for owner in ("w1", "w2"):
            assert self.store.owned_by(owner) == [record for record in expected if record.owner == owner]
        for record in expected:
            loaded = self.store.load("t", record.session_id, record.generation)
            assert loaded == (record, self.sessions[record.session_id].turns)
        timed_out = {
            one.session_id
            for one in expected
            if one.idle_timeout_s and one.last_active_at + one.idle_timeout_s <= self.now
        }
        assert {one.session_id for one in self.store.expired(self.now)} == timed_out


@pytest.mark.parametrize("kind", KINDS)
def test_the_store_does_what_a_dictionary_does(
    kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def machine() -> StoreMachine:
        return StoreMachine(opener(kind, request, tmp_path_factory.mktemp("store")))

    budget = settings(
        max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    run_state_machine_as_test(machine, settings=budget)
