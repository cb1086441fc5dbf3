"""Turns that were joined, resumed or woken while their session went on without them (rules T2, T4, T6, K7)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actors.messages import OnBusy, Reason, SessionMode
from tests.engine.driver import Driver, expected
from tests.engine.test_moving import Pair

PROMPT = list(b"a question")


def parked_while_loading(rid: str = "r", **resumed: Any) -> Driver:
    """A session whose history is being read; `k1` waits for that, and `k2`, the same sent again, has joined it."""
    driver = Driver()
    driver.open()
    driver.turn("k0", PROMPT, 6, rid="before", digest=b"body")
    driver.run()
    row = driver.store[("t", "s")]
    row.record = replace(row.record, epoch=2)
    driver.hold_store = True
    driver.turn("k1", PROMPT, 6, rid=rid, digest=b"body", join=True, **resumed)
    driver.turn("k2", PROMPT, 6, rid=rid, digest=b"body", join=True)
    return driver


def let_go(driver: Driver) -> None:
    driver.hold_store = False
    while driver.effects:
        driver.answer_store()
    driver.run()


def test_who_joined_a_parked_turn_hears_its_stored_answer_too() -> None:
    """T2, E5: the turn turns out to be committed: the follower is told an end without the tokens before it."""
    driver = parked_while_loading(rid="before")
    let_go(driver)
    first, second = driver.told["k1"], driver.told["k2"]
    assert first.ids == second.ids == expected(PROMPT, 6)


def test_who_joined_a_parked_resumed_turn_hears_it_from_the_first_token() -> None:
    """T2, T4: the first caller has a part of it, the follower has nothing."""
    context = [*PROMPT, *expected(PROMPT, 6), *PROMPT]
    driver = parked_while_loading(resumed_ids=tuple(expected(context, 6)[:3]))
    let_go(driver)
    assert driver.told["k1"].ids == driver.told["k2"].ids == expected(context, 6)


def test_who_inherits_a_parked_resumed_turn_hears_it_from_the_first_token() -> None:
    """T2, T4, A1: what the first caller had was not told to its heir."""
    context = [*PROMPT, *expected(PROMPT, 6), *PROMPT]
    driver = parked_while_loading(resumed_ids=tuple(expected(context, 6)[:3]))
    driver.abort(keys=("k1",), reason=Reason.CLIENT_DISCONNECT)
    let_go(driver)
    assert driver.told["k2"].ids == expected(context, 6)


@pytest.mark.parametrize("how", ["parked", "refused"])
def test_an_end_before_the_prompt_is_known_counts_what_was_delivered_before(how: str) -> None:
    """E5, T4: a resumed request that ends in its session's queue, or at the door; the driver compares."""
    driver = Driver()
    driver.open()
    driver.turn("k0", PROMPT, 6)
    on_busy = OnBusy.QUEUE if how == "parked" else OnBusy.REJECT
    told = driver.turn("k1", PROMPT, 6, on_busy=on_busy, resumed_ids=(1, 2, 3))
    driver.abort(keys=("k1",))
    assert told.end is not None
    assert told.end.completion_tokens == 3


def test_a_resumed_turn_does_not_go_on_from_another_turn() -> None:
    """T4, T6, S6: its tokens were made from the head of then. Meanwhile another turn has been committed; going on from
    that one would make a text, and a history, that no undisturbed run makes."""
    lost, driver = Driver(), Driver()
    for each in (lost, driver):
        each.open()
    made = lost.turn("r", PROMPT, 6)
    lost.run()
    resumed = {"resumed_ids": tuple(made.ids[:3]), "resumed_prompt": made.prompt}
    driver.turn("other", [9, 8, 7], 4)
    driver.run()
    refused = driver.turn("r", PROMPT, 6, **resumed)
    assert refused.end is not None
    assert (refused.end.reason, refused.end.redirect) == (Reason.WORKER_LOST, False)
    undisturbed = Driver()
    undisturbed.open()
    told = undisturbed.turn("r", PROMPT, 6, **resumed)
    undisturbed.run()
    assert told.ids == made.ids


# -- hibernation -------------------------------------------------------------------------------------------------------


def two_branches() -> tuple[Driver, dict[str, list[int]]]:
    """A tree: `root`, its children `x` and `q`, and `p`, a child of q. What is in the cache is x's, what hibernates is
    p's, and turn `w`, which continued from p and is over, has asked for that. Returns the contexts, too."""
    driver = Driver(page_size=4, kv_tokens=160, max_step_tokens=16, hibernate_below=0.3)
    driver.open("s", SessionMode.TREE)
    contexts: dict[str, list[int]] = {"": []}
    for name, parent, prompt in (("root", "", [97] * 9), ("q", "root", [5] * 20), ("p", "q", [8] * 8)):
        contexts[name] = run_turn(driver, name, parent, contexts[parent], prompt)
    driver.submit("big", [7] * 154, 1)
    driver.run()
    contexts["x"] = run_turn(driver, "x", "root", contexts["root"], [6] * 12)
    driver.hold_kv = True
    driver.turn("w", [1], 4, parent="p")
    driver.run()
    assert driver.engine.snapshot().waking == 1
    driver.abort(keys=("w",), reason=Reason.CLIENT_DISCONNECT)
    return driver, contexts


def run_turn(driver: Driver, name: str, parent: str, context: list[int], prompt: list[int]) -> list[int]:
    told = driver.turn(name, prompt, 4, **({"parent": parent} if parent else {}))
    driver.run()
    assert told.ids == expected([*context, *prompt], 4)
    return [*context, *prompt, *told.ids]


def let_it_come_back(driver: Driver) -> None:
    driver.hold_kv = False
    while driver.kv.held:
        driver.answer_kv()


def test_what_comes_back_under_a_turn_that_has_not_begun_is_measured_anew() -> None:
    """K7, T6: the turn was granted while the slot was its own branch's, and starts when it is another's."""
    driver, contexts = two_branches()
    told = driver.turn("y", [3, 3], 4, parent="x")
    let_it_come_back(driver)
    driver.run()
    assert told.ids == expected([*contexts["x"], 3, 3], 4)


def test_what_comes_back_for_a_turn_that_was_rolled_back_is_not_counted_as_there() -> None:
    """K7, T6, S12: nothing becomes the slot, so that what the waiting turn shares with it is as before."""
    driver, contexts = two_branches()
    driver.rollback("q")
    told = driver.turn("y", [3, 3], 4, parent="q")
    driver.run()
    let_it_come_back(driver)
    driver.run()
    assert told.ids == expected([*contexts["q"], 3, 3], 4)


def test_what_comes_back_is_not_taken_for_a_later_turn_of_the_same_name() -> None:
    """K7, T6, T2: a name that a rollback freed names another turn now, committed without a step (max_tokens 0)."""
    driver, contexts = two_branches()
    driver.rollback("root")
    driver.turn("later", [4] * 40, 0, parent="root", rid="p")
    let_it_come_back(driver)
    told = driver.turn("y", [3, 3], 4, parent="p")
    driver.run()
    assert told.ids == expected([*contexts["root"], *[4] * 40, 3, 3], 4)


# -- what is read, brought and named anew ------------------------------------------------------------------------------


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
