"""Closing a session that its owner takes in, or is closing, at that very moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.messages import CloseSession, SessionClosed, SessionInfo, SessionMode
from actors.records import SessionRecord, SessionUnknown
from cluster import closing
from cluster.closing import Closer
from cluster.store.offload import OffloadedStore
from cluster.store.sqlite import SqliteStore

MODE = SessionMode.STREAMING


class Owner:
    """Fleet and runtime of one worker. It does not have the session when it is first told to close it; asked for it
    right afterwards, it has, in `state`."""

    def __init__(self, record: SessionRecord, state: str) -> None:
        self.record = record
        self.state = state
        self.closes = 0

    async def knows_alive(self, worker_id: str) -> bool:
        return True

    async def probe(self, worker_id: str) -> None:
        """It lives."""

    async def ask(self, worker_id: str, message: object) -> object:
        if isinstance(message, CloseSession):
            self.closes += 1
            return SessionClosed(known=self.closes > 1, turns=3)
        record = self.record
        return SessionInfo(
            tenant=record.tenant,
            session_id=record.session_id,
            generation=record.generation,
            epoch=record.epoch,
            mode=MODE,
            state=self.state,
            turns=3,
            tokens=10,
            resident_tokens=0,
            idle_s=0.0,
        )


def close(tmp_path: Path, state: str) -> tuple[SessionClosed, int]:
    """(what came of it, how often the owner was told)."""
    store = SqliteStore(tmp_path / "s.sqlite")
    record = store.create("t", "s", owner="w1", mode=MODE, idle_timeout_s=None, capacity_tokens=None, now=0.0)
    owner: Any = Owner(record, state)

    async def check() -> SessionClosed:
        offloaded = OffloadedStore(store)
        try:
            return await Closer(owner, owner, offloaded).close(record, abort_running=False)
        finally:
            offloaded.close()

    return asyncio.run(check()), owner.closes


@pytest.mark.parametrize("state", ["loading", "idle", "busy"])
def test_a_session_that_arrives_while_it_is_closed_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """S9, T5: as when it moves off a worker that is drained: never "no such session", and then it is there."""
    monkeypatch.setattr(closing, "LOST_PAUSE_S", 0.0)
    closed, times = close(tmp_path, state)
    assert (closed.known, closed.turns, times) == (True, 3, 2)


def test_a_session_that_its_owner_is_closing_already_is_unknown(tmp_path: Path) -> None:
    """S9: it is closed once."""
    with pytest.raises(SessionUnknown):
        close(tmp_path, "closing")
