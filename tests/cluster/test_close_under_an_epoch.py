"""A store's close, asked for by a worker that may have lost the session."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.messages import SessionMode
from actors.records import SessionRecord, SessionStore
from cluster.store.sqlite import SqliteStore
from tests.sim.store import SimStore


@pytest.fixture(params=["sqlite", "sim"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    return SqliteStore(tmp_path / "s.sqlite") if request.param == "sqlite" else SimStore(lambda line: None)


def moved(store: SessionStore) -> SessionRecord:
    """A session that w1 opened and w2 took over."""
    mode = SessionMode.STREAMING
    store.create("t", "s", owner="w1", mode=mode, idle_timeout_s=None, capacity_tokens=None, now=0.0)
    return store.acquire("t", "s", owner="w2", expected_epoch=1)


def test_close_of_a_former_owner_changes_nothing(store: SessionStore) -> None:
    """T1, T3: an idle clock that rings on a worker which slept must not delete what another owns now."""
    record = moved(store)
    assert store.close("t", "s", record.generation, epoch=1) is False
    assert store.get("t", "s") == record


def test_close_of_the_owner_and_of_the_pool_forget(store: SessionStore) -> None:
    """S9: the owner names its epoch, the pool needs none."""
    assert store.close("t", "s", moved(store).generation, epoch=2) is True
    assert store.close("t", "s", moved(store).generation) is True
