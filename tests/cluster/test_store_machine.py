"""The store against a dictionary, whatever the order of calls."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.messages import Outcome, SessionMode
from actors.records import CommitStatus, SessionExists, SessionRecord, SessionUnknown, TurnCommit, TurnRecord
from cluster.store.sqlite import SqliteStore

names = st.sampled_from(["a", "b", "ß"])
owners = st.sampled_from(["w1", "w2"])
epochs = st.integers(1, 4)


@dataclass
class Modelled:
    record: SessionRecord
    turns: list[TurnRecord] = field(default_factory=list)


class StoreMachine(RuleBasedStateMachine):
    """T3, S9: epochs and generations guard every change; the file says the same after it was opened anew."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = SqliteStore(Path(self.folder.name) / "s.sqlite")
        self.sessions: dict[str, Modelled] = {}
        self.generation = 0
        self.now = 0.0

    def teardown(self) -> None:
        self.store.shut()
        self.folder.cleanup()

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
    @rule(name=names, epoch=epochs, old=st.booleans(), drop=st.booleans(), repeat=st.booleans())
    def commit(self, name: str, epoch: int, old: bool, drop: bool, repeat: bool) -> None:
        self.now += 1
        known = self.sessions.get(name)
        generation = known.record.generation if known else self.generation
        turns = known.turns if known else []
        last = turns[-1].number if turns else 0
        turn = TurnRecord(
            rid=f"r{last + 1}",
            number=last + 1,
            parent=turns[-1].rid if turns else None,
            keep=last,
            input_ids=(last,),
            output_ids=(epoch,),
            outcome=Outcome.STOP,
            dropped=(turns[-1].rid,) if drop and turns else (),
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

    @rule()
    def reopen_the_file(self) -> None:
        self.store.shut()
        self.store = SqliteStore(Path(self.folder.name) / "s.sqlite")

    @invariant()
    def says_what_the_model_says(self) -> None:
        expected = [self.sessions[name].record for name in sorted(self.sessions)]
        assert self.store.list_sessions("t") == expected
        assert self.store.count("t") == len(expected)
        for record in expected:
            loaded = self.store.load("t", record.session_id, record.generation)
            assert loaded == (record, self.sessions[record.session_id].turns)
        timed_out = {
            one.session_id
            for one in expected
            if one.idle_timeout_s and one.last_active_at + one.idle_timeout_s <= self.now
        }
        assert {one.session_id for one in self.store.expired(self.now)} == timed_out


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
