"""Sessions that move to another worker, with their KV (rules T5, P3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actors.engine.request import RequestState
from actors.messages import LeaveSession, Outcome, Reason, ReceiveSession, SessionLeft
from tests.engine.driver import Driver, expected

A = list(range(40, 61))


class Pair:
    """Two workers, one store, and the pool's part of a move."""

    def __init__(self, depth: int = 0, **settings: Any) -> None:
        fields = {"page_size": 4, "page_bytes": 32, "hibernate_below": 0.01, "depth": depth, **settings}
        self.old, self.new = Driver(**fields), Driver(**fields)
        self.new.store = self.old.store
        self.new.kv.parcels = self.old.kv.parcels

    def begin(self) -> list[int]:
        """A session with one turn. Returns its context: 25 tokens, 24 of which have KV: 6 full pages."""
        self.old.open()
        told = self.old.turn("r1", A, 4)
        self.old.run()
        return A + told.ids

    def leave(self, max_kv_bytes: int = 10**6) -> SessionLeft | None:
        record = self.old.store[("t", "s")].record
        numbers = {"generation": record.generation, "epoch": record.epoch}
        left = self.old.ask(LeaveSession, session_id="s", parcel="p", max_kv_bytes=max_kv_bytes, **numbers)
        assert left is None or isinstance(left, SessionLeft)
        return left

    def acquire(self) -> None:
        row = self.old.store[("t", "s")]
        row.record = replace(row.record, epoch=row.record.epoch + 1, owner="new")

    def receive(self, keys: bytes) -> bool:
        record = self.old.store[("t", "s")].record
        numbers = {"generation": record.generation, "epoch": record.epoch}
        useful = self.new.ask(ReceiveSession, session_id="s", parcel="p", keys=keys, **numbers)
        assert isinstance(useful, bool)
        return useful

    def is_clean(self) -> bool:
        """Nothing is left of the move."""
        stats = self.old.engine.snapshot()
        left = (stats.sessions, stats.images, stats.pages.session_held, len(self.old.engine.core.kv.transfers))
        return left == (0, 0, 0, 0) and not self.old.kv.images and not self.old.kv.parcels


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


def test_a_moved_session_goes_on_without_a_prefill(depth: int) -> None:
    """T5: its next turn finds its full pages on the new worker; the text is what it would have been."""
    pair = Pair(depth)
    context = pair.begin()
    left = pair.leave()
    assert left is not None
    assert (left.left, len(left.keys)) == (True, 6 * 16)
    pair.acquire()
    assert pair.receive(left.keys)
    told = pair.new.turn("r2", [1, 2], 4)
    pair.new.run()
    assert told.ids == expected([*context, 1, 2], 4)
    assert told.end.cached_tokens == 24
    assert pair.is_clean()


@pytest.mark.parametrize("limit", [0, 6 * 32 - 1])
def test_large_kv_stays_behind(depth: int, limit: int) -> None:
    """T5: only when cheap; else history only."""
    pair = Pair(depth)
    context = pair.begin()
    assert pair.leave(limit) == SessionLeft(left=True)
    pair.acquire()
    told = pair.new.turn("r2", [1, 2], 4)
    pair.new.run()
    assert (told.ids, told.end.cached_tokens) == (expected([*context, 1, 2], 4), 0)
    assert pair.is_clean()


def test_a_turn_that_comes_while_kv_is_copied_keeps_the_session(depth: int) -> None:
    """P3: a session moves only between turns."""
    pair = Pair(depth)
    context = pair.begin()
    pair.old.hold_kv = True
    assert pair.leave() is None
    told = pair.old.turn("r2", [1, 2], 8)
    pair.old.step()
    pair.old.hold_kv = False
    pair.old.answer_kv()
    assert pair.old.replies[pair.old.last_ask] == SessionLeft(left=False)
    pair.old.run()
    assert told.ids == expected([*context, 1, 2], 8)
    assert pair.leave().left


def test_a_close_while_kv_is_copied_is_answered_and_so_is_the_move() -> None:
    """S9: nobody waits for ever."""
    pair = Pair()
    pair.begin()
    pair.old.hold_kv = True
    assert pair.leave() is None
    asked = pair.old.last_ask
    pair.old.close()
    pair.old.hold_kv = False
    pair.old.answer_kv()
    assert pair.old.replies[asked] == SessionLeft(left=False)
    assert pair.old.replies[pair.old.last_ask].known
    assert pair.is_clean()


@pytest.mark.parametrize("abort", [False, True])
def test_a_turn_waits_for_kv_that_is_on_its_way(depth: int, abort: bool) -> None:
    """T5, A1: rather than prefilling what arrives in a moment; and it can be aborted meanwhile."""
    pair = Pair(depth)
    context = pair.begin()
    left = pair.leave()
    assert left is not None
    pair.acquire()
    pair.new.hold_kv = True
    pair.receive(left.keys)
    told = pair.new.turn("r2", [1, 2], 4)
    pair.new.run()
    assert pair.new.engine.core.requests.by_key("r2").state is RequestState.WAITING_KV
    if abort:
        pair.new.abort(rids=("r2",))
        assert told.end.reason is Reason.CLIENT_ABORT
        told = pair.new.turn("r3", [1, 2], 4)
    pair.new.hold_kv = False
    pair.new.answer_kv()
    pair.new.run()
    assert (told.ids, told.end.cached_tokens) == (expected([*context, 1, 2], 4), 24)


@pytest.mark.parametrize("fault", ["never came", "cut short", "harmed"])
def test_a_parcel_that_is_not_whole_costs_a_prefill(fault: str, depth: int) -> None:
    """T5, T6: never text."""
    pair = Pair(depth)
    context = pair.begin()
    left = pair.leave()
    assert left is not None
    pair.acquire()
    if fault == "never came":
        pair.new.kv.parcels.clear()
    elif fault == "cut short":
        del pair.new.kv.parcels["p"][2:]
    else:
        pair.new.kv.harmed = {1}
    pair.receive(left.keys)
    told = pair.new.turn("r2", [1, 2], 4)
    pair.new.run()
    assert told.ids == expected([*context, 1, 2], 4)
    assert told.end.cached_tokens == {"never came": 0, "cut short": 8, "harmed": 4}[fault]


def test_a_parcel_for_a_session_that_has_kv_is_thrown_away(depth: int) -> None:
    """T5: its turn was faster."""
    pair = Pair(depth)
    context = pair.begin()
    left = pair.leave()
    assert left is not None
    pair.acquire()
    told = pair.new.turn("r2", [1, 2], 4)
    pair.new.run()
    assert not pair.receive(left.keys)
    again = pair.new.turn("r3", [3], 4)
    pair.new.run()
    assert again.ids == expected([*context, 1, 2, *told.ids, 3], 4)
    assert pair.is_clean()


def test_a_parcel_for_a_session_that_went_on_is_thrown_away() -> None:
    """T3: it has changed hands again."""
    pair = Pair()
    pair.begin()
    left = pair.leave()
    assert left is not None
    pair.acquire()
    pair.new.turn("r2", [1, 2], 4)
    pair.new.run()
    record = pair.old.store[("t", "s")].record
    numbers = {"generation": record.generation, "epoch": record.epoch - 1}
    assert pair.new.ask(ReceiveSession, session_id="s", parcel="p", keys=left.keys, **numbers) is False
    assert pair.new.info().epoch == record.epoch


def test_what_arrived_is_given_back_when_the_session_closes() -> None:
    """S9, K6: also while it is being unpacked."""
    pair = Pair()
    pair.begin()
    left = pair.leave()
    assert left is not None
    pair.acquire()
    pair.new.hold_kv = True
    pair.receive(left.keys)
    assert pair.new.close() is None
    pair.new.hold_kv = False
    pair.new.answer_kv()
    assert pair.new.replies[pair.new.last_ask].known
    stats = pair.new.engine.snapshot()
    assert (stats.sessions, stats.images, len(pair.new.engine.core.kv.transfers)) == (0, 0, 0)


def test_it_can_move_back_again(depth: int) -> None:
    """T3, T5: what went around is one conversation."""
    pair = Pair(depth)
    context = pair.begin()
    for number in range(3):
        left = pair.leave()
        assert left is not None
        pair.acquire()
        pair.old.tick(20.0)  # Nobody remembers what left so long ago.
        pair.old, pair.new = pair.new, pair.old
        record = pair.old.store[("t", "s")].record
        numbers = {"generation": record.generation, "epoch": record.epoch}
        assert pair.old.ask(ReceiveSession, session_id="s", parcel="p", keys=left.keys, **numbers)
        told = pair.old.turn(f"n{number}", [number], 4)
        pair.old.run()
        assert told.end.outcome is Outcome.LENGTH
        assert told.ids == expected([*context, number], 4)
        assert told.end.cached_tokens == (len(context) - 1) // 4 * 4
        context += [number, *told.ids]
