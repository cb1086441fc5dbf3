"""Idle sessions' KV leaves the cache and comes back (rule K7)."""

from __future__ import annotations

from typing import Any

import pytest

from actors.engine.request import RequestState
from actors.messages import OnBusy, Outcome, Reason, SessionMode, Shutdown, Stage
from tests.engine.driver import Driver, Told, expected


def crowded(pages: int = 12, below: float = 1.0, **settings: Any) -> Driver:
    """A cache of `pages` pages of 4 tokens, whose idle slots are copied at once."""
    return Driver(page_size=4, kv_tokens=pages * 4, max_step_tokens=64, hibernate_below=below, **settings)


def first_turn(driver: Driver, name: str, length: int = 17) -> list[int]:
    """Open a session with one turn. Returns its context: `length` + 4 tokens, the KV of all but the last of them."""
    driver.open(name)
    prompt = [ord(name[-1])] * length
    told = driver.turn(f"{name}-1", prompt, 4, session_id=name)
    driver.run()
    return prompt + told.ids


def crowd_out(driver: Driver, pages: int = 12) -> None:
    """A request that needs all pages there are."""
    driver.submit("big", [7] * (pages * 4 - 2), 1)
    driver.run()


def next_turn(driver: Driver, name: str = "a", key: str = "next") -> Told:
    told = driver.turn(key, [1, 2, 3], 4, session_id=name)
    driver.run()
    return told


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_an_evicted_session_comes_back_without_a_prefill(depth: int, prefix_cache: bool) -> None:
    """K7: the full pages of what the session had are there again; its text is what it would have been."""
    driver = crowded(depth=depth, prefix_cache=prefix_cache)
    context = first_turn(driver, "a")
    crowd_out(driver)
    assert driver.info("a").resident_tokens == 0
    assert driver.info("a").hibernated_tokens == 20
    told = next_turn(driver)
    assert told.ids == expected([*context, 1, 2, 3], 4)
    assert told.end.cached_tokens == 20
    assert driver.engine.snapshot().loaded_pages == 5


def test_nothing_is_copied_while_there_is_room() -> None:
    """K7: copies are made ahead of need, and not without it."""
    driver = crowded(pages=100, below=0.25)
    first_turn(driver, "a")
    assert driver.engine.snapshot().saved_pages == 0
    driver = crowded(pages=100, below=0.0)
    first_turn(driver, "a", 380)
    assert driver.engine.snapshot().saved_pages == 0


def test_the_longest_idle_are_copied_first_and_only_as_many_as_needed() -> None:
    """K7, K4: with 30 pages and half of them to be replaceable, the first of four sessions of 6 pages goes first."""
    driver = crowded(pages=30, below=0.5)
    driver.hold_kv = True
    for name in "abcd":
        first_turn(driver, f"s{name}")
    order = [driver.engine.core.sessions.by_uid(effect.session).session_id for effect in driver.kv.held]
    assert order == ["sa", "sb"]
    while driver.kv.held:
        driver.answer_kv()
    assert driver.engine.snapshot().images == 2
    assert driver.engine.core.kv.replaceable >= 15


def test_a_later_turn_is_copied_from_where_the_image_ends() -> None:
    """K7: what was copied once is not copied again."""
    driver = crowded(pages=40)
    context = first_turn(driver, "a")
    told = next_turn(driver)
    (image,) = driver.kv.images.values()
    assert len(image) == len([*context, 1, 2, 3, *told.ids[:-1]]) // 4 == 6
    assert driver.engine.snapshot().saved_pages == 6


@pytest.mark.parametrize(("fault", "cached"), [("harmed", 8), ("lost", 4), ("no room", 0), ("gone", 0)])
def test_what_does_not_come_back_is_prefilled(fault: str, cached: int, depth: int) -> None:
    """K7: a failed read is silent to the user, and counted."""
    driver = crowded(depth=depth)
    if fault == "no room":
        driver.kv.room = 0
    context = first_turn(driver, "a")
    crowd_out(driver)
    session = driver.engine.core.sessions.find("t", "a").uid
    if fault == "harmed":
        driver.kv.harmed = {2}
    elif fault == "lost":
        driver.handle(driver.kv.lose(session, 1))
    elif fault == "gone":
        driver.kv.images.clear()
    told = next_turn(driver)
    assert told.ids == expected([*context, 1, 2, 3], 4)
    assert told.end.cached_tokens == cached
    assert driver.engine.snapshot().missed_pages == {"harmed": 3, "gone": 5}.get(fault, 0)
    driver.kv.harmed = set()
    crowd_out(driver)
    again = next_turn(driver, key="again")
    assert again.ids == expected([*context, 1, 2, 3, *told.ids, 1, 2, 3], 4)


def waking(driver: Driver) -> Told:
    """A turn that waits for KV being read."""
    first_turn(driver, "a")
    crowd_out(driver)
    driver.hold_kv = True
    told = driver.turn("next", [1, 2, 3], 4, session_id="a", waiting_timeout_s=5.0)
    driver.run()
    request = driver.engine.core.requests.by_key("next")
    assert request.state is RequestState.WAITING_KV
    assert driver.engine.snapshot().waking == 1
    return told


@pytest.mark.parametrize("how", ["abort", "timeout", "close", "supersede", "shutdown"])
def test_a_turn_that_ends_while_its_kv_is_read(how: str) -> None:
    """A1, C4, K2: it ends at once, without a forward pass, and what was being read is the session's all the same."""
    driver = crowded()
    told = waking(driver)
    steps = driver.engine.snapshot().steps
    if how == "abort":
        (hit,) = driver.abort(rids=("next",)).hit
        assert hit.stage is Stage.WAITING
    elif how == "timeout":
        driver.tick(6.0)
    elif how == "close":
        assert driver.close("a", abort_running=True) is None, "the pages that are read are not free yet (S9)"
    elif how == "supersede":
        driver.turn("later", [9], 2, session_id="a", on_busy=OnBusy.SUPERSEDE)
    else:
        driver.handle(Shutdown())
    reasons = {
        "abort": Reason.CLIENT_ABORT,
        "timeout": Reason.WAITING_TIMEOUT,
        "close": Reason.SESSION_CLOSED,
        "supersede": Reason.SUPERSEDED,
        "shutdown": Reason.SHUTDOWN,
    }
    assert (told.end.outcome, told.end.reason) == (Outcome.ABORT, reasons[how])
    assert driver.engine.snapshot().steps == steps
    driver.hold_kv = False
    driver.answer_kv()
    if how == "close":
        assert driver.replies[driver.last_ask].known
        assert driver.engine.core.kv.counts.session_held == 0
        assert driver.kv.images == {}
    elif how == "supersede":
        driver.run()
        assert driver.told["later"].end.cached_tokens == 20
    else:
        assert driver.info("a").resident_tokens == 20


def test_the_next_turn_joins_the_read_of_an_aborted_one() -> None:
    """A7, K7: no second copy is begun for the same pages."""
    driver = crowded()
    waking(driver)
    driver.abort(rids=("next",))
    told = driver.turn("after", [1, 2, 3], 4, session_id="a")
    driver.run()
    assert len(driver.kv.held) == 1
    driver.hold_kv = False
    driver.answer_kv()
    driver.run()
    assert (told.end.outcome, told.end.cached_tokens) == (Outcome.LENGTH, 20)


def test_pages_being_copied_out_are_not_given_to_others() -> None:
    """K6, K7: a slot is not evicted, nor its pages reused, until the copy is made."""
    driver = crowded()
    driver.hold_kv = True
    context = first_turn(driver, "a")
    told = driver.submit("big", [7] * 42, 1)
    for _ in range(20):
        driver.step()
    assert told.end is None, "the pages it needs are being copied"
    driver.hold_kv = False
    driver.answer_kv()
    driver.run()
    assert told.end.outcome is Outcome.LENGTH
    assert next_turn(driver).ids == expected([*context, 1, 2, 3], 4)


def test_another_session_is_evicted_while_one_is_being_copied() -> None:
    """K4, K7: giving up the older slot would bring nothing, since its pages are held by the copy."""
    driver = crowded(pages=20)
    driver.hold_kv = True
    first_turn(driver, "a")
    first_turn(driver, "b")
    driver.kv.held.rotate()
    driver.answer_kv()
    crowd_out(driver, 14)
    assert (driver.info("a").resident_tokens, driver.info("b").resident_tokens) == (20, 0)


def test_close_forgets_the_image() -> None:
    """S9, K7: nothing is kept of a closed session, wherever it was."""
    driver = crowded()
    first_turn(driver, "a")
    crowd_out(driver)
    assert driver.kv.images
    driver.close("a")
    assert (driver.kv.images, driver.engine.snapshot().images) == ({}, 0)


def test_a_close_waits_for_the_copy_that_is_being_made() -> None:
    """S9: the answer to close comes after the memory is free."""
    driver = crowded()
    driver.hold_kv = True
    first_turn(driver, "a")
    assert driver.close("a") is None
    driver.hold_kv = False
    driver.answer_kv()
    assert driver.replies[driver.last_ask].freed_tokens == 20
    assert driver.kv.images == {}


def test_flush_forgets_images() -> None:
    """K6: after a flush every page is free and nothing hibernates; the next turn is prefilled."""
    driver = crowded()
    context = first_turn(driver, "a")
    driver.ask_flush()
    assert driver.kv.images == {}
    told = next_turn(driver)
    assert (told.ids, told.end.cached_tokens) == (expected([*context, 1, 2, 3], 4), 0)


def test_a_rollback_uses_what_it_can_of_the_image() -> None:
    """S12, K7: pages are known by content, so that those of the turns left are still good."""
    driver = crowded(pages=40)
    context = first_turn(driver, "a")
    next_turn(driver)
    driver.rollback("a-1", "a")
    crowd_out(driver, 40)
    assert driver.info("a").resident_tokens == 0
    told = driver.turn("other", [8, 8], 4, session_id="a")
    driver.run()
    assert told.ids == expected([*context, 8, 8], 4)
    assert told.end.cached_tokens == 20


def test_branches_wake_with_their_own_kv() -> None:
    """S3, K7: an image of one branch serves another as far as they agree."""
    driver = crowded(pages=20)
    driver.open("a", SessionMode.TREE)
    root = driver.turn("root", [5] * 17, 4, session_id="a")
    driver.run()
    driver.turn("left", [1] * 9, 4, session_id="a", parent="root")
    driver.run()
    crowd_out(driver, 20)
    told = driver.turn("right", [2] * 9, 4, session_id="a", parent="root")
    driver.run()
    assert told.ids == expected([5] * 17 + root.ids + [2] * 9, 4)
    assert told.end.cached_tokens == 20


def test_another_root_does_not_wake_with_this_ones_kv() -> None:
    """S3, K7: the image is of the turn that ran last; a turn of the other root finds nothing in it."""
    driver = crowded(pages=20)
    driver.open("a", SessionMode.TREE)
    one = driver.turn("one", [5] * 17, 4, session_id="a", parent=None)
    driver.run()
    driver.turn("two", [6] * 17, 4, session_id="a", parent=None)
    driver.run()
    crowd_out(driver, 20)
    told = driver.turn("next", [2] * 9, 4, session_id="a", parent="one")
    driver.run()
    assert told.ids == expected([5] * 17 + one.ids + [2] * 9, 4)
    assert told.end.cached_tokens == 0


def test_a_preempted_turn_may_find_its_sessions_kv_hibernating() -> None:
    """K4, K7: a session whose running turn was preempted is as idle as any; its slot comes back with it."""
    driver = crowded(pages=14, max_running=2)
    context = first_turn(driver, "a")
    told = driver.turn("next", [1, 2, 3], 12, session_id="a", priority=-1)
    driver.step()
    driver.step()
    big = driver.submit("big", [7] * 24, 26)
    driver.run()
    assert big.end.outcome is told.end.outcome is Outcome.LENGTH
    assert told.ids == expected([*context, 1, 2, 3], 12)
    stats = driver.engine.snapshot()
    assert (stats.preemptions, stats.woken_turns) == (1, 1)
