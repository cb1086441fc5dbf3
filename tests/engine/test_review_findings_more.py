"""More faults found in review; each goes to the file of its subject when it is mended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.messages import Reason
from tests.engine.driver import Driver
from tests.engine.test_moving import Pair

PROMPT = list(b"a question")


@pytest.mark.xfail(strict=True, reason="Closing.loaded retires a session without forgetting its image")
def test_kv_that_was_brought_for_a_session_that_cannot_be_read_is_forgotten() -> None:
    """K6, K7, T5: else it stays in memory and on the disk for good, under a name that nobody knows."""
    pair = Pair()
    pair.begin()
    left = pair.leave()
    assert left is not None
    pair.acquire()
    pair.new.hold_store = True
    assert pair.receive(left.keys)
    pair.new.store_error = "the disk is full"
    pair.new.hold_store = False
    pair.new.answer_store()
    assert not pair.new.engine.core.images
    assert not pair.new.kv.images


@pytest.mark.xfail(strict=True, reason="Following.leader and Door._at_sight look at the session's id only")
@pytest.mark.parametrize("join", [True, False])
def test_a_turn_placed_under_a_later_epoch_does_not_meet_the_former_owners_turn(join: bool) -> None:
    """T3, S9: the session has changed hands and come back: what runs here was made from what it was before, and its
    commit will be refused. The new attempt takes its place, joined or not."""
    driver = Driver()
    driver.open()
    former = driver.turn("k1", PROMPT, 12, rid="r", digest=b"body")
    driver.step()
    row = driver.store[("t", "s")]
    row.record = replace(row.record, epoch=3)
    later = driver.turn("k2", PROMPT, 12, rid="r", digest=b"body", join=join, epoch=3)
    driver.run()
    assert former.end is not None
    assert former.end.reason is Reason.WORKER_LOST
    assert later.end is not None
    assert later.end.turn == 1


@pytest.mark.xfail(strict=True, reason="History raises in the loop, which ends the worker, and the next owner likewise")
@pytest.mark.parametrize("harm", ["no such head", "a missing parent"])
def test_a_history_with_a_hole_costs_its_session_and_not_the_worker(harm: str) -> None:
    """T6, I1: what was read is not a history: the answer says so. Else one record ends worker after worker."""
    driver = Driver()
    driver.open()
    for key in ("k1", "k2"):
        driver.turn(key, PROMPT, 4)
        driver.run()
    row = driver.store[("t", "s")]
    row.record = replace(row.record, epoch=2, head="never" if harm == "no such head" else row.record.head)
    if harm == "a missing parent":
        del row.turns[0]
    told = driver.turn("k3", PROMPT, 4)
    driver.run()
    assert told.end is not None
    assert told.end.reason is Reason.INTERNAL


@pytest.mark.xfail(strict=True, reason="Following.join and Endings.replay count what was told, and do not compare it")
@pytest.mark.parametrize("how", ["joined", "replayed"])
def test_what_was_told_of_another_text_is_not_continued_with_this_one(how: str) -> None:
    """T4, T2, I2: the turn was begun on a worker that was lost; another turn came in between, then somebody else sent
    the turn again, and it runs, or ran, from the new head. Who was told the beginning of the former cannot join."""
    driver = Driver()
    driver.open()
    driver.turn("k0", [9, 8, 7], 4)
    driver.run()
    driver.turn("k1", PROMPT, 12, rid="r", digest=b"body")
    for _ in range(8 if how == "joined" else 40):
        driver.step()
    told = driver.turn(
        "k2", PROMPT, 12, rid="r", digest=b"body", join=True, resumed_ids=(1, 2, 3), resumed_prompt=b"another"
    )
    driver.run()
    assert told.end is not None
    assert told.end.reason is Reason.WORKER_LOST
    assert told.ids == [1, 2, 3]
