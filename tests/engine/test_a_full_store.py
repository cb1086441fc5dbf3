"""A turn that the store has no room for (rule S10): not told as done, not in history, and its session goes on."""

from __future__ import annotations

import pytest

from actors.engine.effects import StoreTurn, TurnStored
from actors.messages import Outcome, Reason
from actors.records import CommitStatus
from tests.engine.driver import Driver, expected

A, B = list(range(1, 11)), list(range(20, 27))


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    ("status", "reason", "cap"),
    [
        (CommitStatus.SESSION_FULL, Reason.SESSION_CAPACITY, "max_session_bytes"),
        (CommitStatus.STORE_FULL, Reason.INTERNAL, "max_total_bytes"),
    ],
)
def test_a_turn_without_room_ends_with_that_and_leaves_its_session_as_it_was(
    depth: int, status: CommitStatus, reason: Reason, cap: str
) -> None:
    """S2, S10, K2: the next turn continues from what was committed before, and its KV is still there."""
    driver = Driver(depth=depth)
    driver.open()
    first = driver.turn("r1", A)
    driver.run()
    driver.hold_store = True
    refused = driver.turn("r2", B)
    driver.run()
    effect = driver.effects.popleft()
    assert isinstance(effect, StoreTurn)
    driver.handle(TurnStored(session=effect.session, uid=effect.uid, full=status))
    driver.hold_store = False
    assert refused.end is not None
    assert (refused.end.outcome, refused.end.reason) == (Outcome.ABORT, reason)
    assert cap in refused.end.message
    third = driver.turn("r3", B)
    driver.run()
    assert third.ids == expected(A + first.ids + B, 8)
    assert third.end is not None
    assert third.end.cached_tokens >= len(A) + len(first.ids) - 1
