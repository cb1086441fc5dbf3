"""A store that raises what it should not (rules T6, E1)."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest

from actors.engine.effects import EffectResult, LoadSession, SessionLoaded, StoreTurn, TurnStored
from actors.messages import Outcome
from actors.records import TurnCommit, TurnRecord
from actors.worker.store_effects import StoreEffects
from cluster.store.sqlite import SqliteStore


class Faulty(SqliteStore):
    """A store with a bug: what it raises is not a StoreError."""

    def commit(self, commits, now):  # type: ignore[no-untyped-def]
        raise KeyError("a bug")

    def load(self, tenant, session_id, generation):  # type: ignore[no-untyped-def]
        raise KeyError("a bug")


TURN = TurnRecord(rid="r", number=1, parent=None, keep=0, input_ids=(1,), output_ids=(2,), outcome=Outcome.STOP)
COMMIT = TurnCommit(tenant="t", session_id="s", generation=1, epoch=1, turn=TURN, tokens=2)


@pytest.mark.parametrize("effect", ["commit", "load"])
def test_a_bug_in_the_store_is_answered_as_a_failure(tmp_path: Path, effect: str) -> None:
    """T6, E1: every effect is answered: else the session waits for ever, and with the commits' thread gone all do."""
    mail: queue.SimpleQueue[EffectResult] = queue.SimpleQueue()
    store = Faulty(tmp_path / "s.sqlite")
    effects = StoreEffects(store, mail.put, lambda: 100.0)
    try:
        if effect == "commit":
            effects.perform(StoreTurn(session=1, uid=1, commit=COMMIT))
        else:
            effects.perform(LoadSession(session=1, tenant="t", session_id="s", generation=1))
        answer = mail.get(timeout=0.5)
        assert isinstance(answer, (TurnStored, SessionLoaded))
        assert answer.error
    finally:
        effects.close()
        store.shut()
