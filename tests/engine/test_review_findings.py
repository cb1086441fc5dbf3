"""Faults found in review; each goes to the file of its subject when it is mended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actors.messages import OnBusy, Reason, SessionMode
from tests.engine.driver import Driver, expected

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
