"""Generation that was paused by order: nothing is computed, nothing is lost, and all else goes on."""

from __future__ import annotations

from typing import Any

import pytest

from actors.messages import Outcome, Pause, PauseMode, Reason, Resume, Stage
from tests.engine.driver import Driver, expected

A, B = list(range(1, 11)), list(range(20, 27))


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


def pause(driver: Driver, mode: PauseMode) -> int:
    """Send it; returns the number of its ask."""
    return send(driver, Pause, mode=mode)


def send(driver: Driver, kind: Any, **fields: Any) -> int:
    number = 1000 + len(driver.replies)
    driver.handle(kind(ask=number, **fields))
    return number


@pytest.mark.parametrize("mode", list(PauseMode))
def test_nothing_is_planned_until_it_goes_on(mode: PauseMode, depth: int) -> None:
    """Session case A23: what runs ends or stays, what comes waits, and afterwards all of it is computed."""
    driver = Driver(depth=depth)
    running = driver.submit("r1", A, 20)
    for _ in range(4):
        driver.step()
    assert running.ids
    ask = pause(driver, mode)
    while driver.launched:
        driver.commit()
    waiting = driver.submit("r2", B, 5)
    made = driver.engine.core.totals.steps
    assert not driver.step()
    assert not driver.engine.has_work
    assert driver.engine.core.totals.steps == made
    assert driver.replies[ask] == (0 if mode is PauseMode.ABORT else 1)
    assert waiting.end is None
    assert driver.replies[send(driver, Resume)] == (1 if mode is PauseMode.ABORT else 2)
    driver.run()
    assert waiting.ids == expected(B, 5)
    assert running.end is not None
    if mode is PauseMode.ABORT:
        assert (running.end.outcome, running.end.reason) == (Outcome.ABORT, Reason.CLIENT_ABORT)
        assert running.ids == expected(A, 20)[: len(running.ids)]
    else:
        assert (running.end.outcome, running.ids) == (Outcome.LENGTH, expected(A, 20))


def test_the_answer_comes_when_no_step_is_under_way() -> None:
    """A3: who is told that it stands still may touch what it was computing with."""
    driver = Driver(depth=1)
    running = driver.submit("r1", A, 20)
    driver.step()
    driver.launch()
    assert len(driver.launched) == 2
    ask = pause(driver, PauseMode.IN_PLACE)
    driver.commit()
    assert ask not in driver.replies
    driver.commit()
    assert driver.replies[ask] == 1
    assert running.end is None


def test_retracted_requests_leave_their_pages_so_that_a_flush_frees_all(depth: int) -> None:
    """K4, K6: and the same tokens follow."""
    driver = Driver(depth=depth)
    told = [driver.submit(f"r{number}", [number, *A], 12) for number in range(3)]
    for _ in range(6):
        driver.step()
    pause(driver, PauseMode.RETRACT)
    while driver.launched:
        driver.commit()
    stats = driver.engine.snapshot()
    assert (stats.pages.request_owned, stats.running, stats.waiting) == (0, 0, 3)
    driver.ask_flush()
    pages = driver.engine.snapshot().pages
    assert pages.free == pages.total
    send(driver, Resume)
    driver.run()
    assert [one.ids for one in told] == [expected([number, *A], 12) for number in range(3)]


def test_in_place_keeps_the_pages(depth: int) -> None:
    """K4: nothing has to be computed again."""
    driver = Driver(depth=depth)
    driver.submit("r1", A, 12)
    for _ in range(4):
        driver.step()
    pause(driver, PauseMode.IN_PLACE)
    while driver.launched:
        driver.commit()
    assert driver.engine.snapshot().pages.request_owned > 0
    send(driver, Resume)
    driver.run()
    assert driver.engine.core.totals.recomputed_tokens == 0


def test_aborts_work_while_it_is_paused(depth: int) -> None:
    """A3, A7: and the session takes its next turn at once, which waits like any other."""
    driver = Driver(depth=depth)
    driver.open()
    first = driver.turn("r1", A, 20)
    driver.step()
    pause(driver, PauseMode.IN_PLACE)
    while driver.launched:
        driver.commit()
    driver.abort(rids=("r1",))
    assert first.end is not None
    assert first.end.reason is Reason.CLIENT_ABORT
    second = driver.turn("r2", B, 4)
    assert second.end is None
    send(driver, Resume)
    driver.run()
    assert second.ids == expected(B, 4)


def test_clocks_run_on(depth: int) -> None:
    """C1: time is time, whatever it is spent on: waiting, running, idle."""
    driver = Driver(depth=depth)
    driver.open(idle_timeout_s=5.0)
    running = driver.submit("r1", A, 20, running_timeout_s=1.0)
    driver.step(0.0)
    pause(driver, PauseMode.IN_PLACE)
    while driver.launched:
        driver.commit()
    waiting = driver.submit("r2", B, 4, waiting_timeout_s=1.0)
    deadline = driver.submit("r3", B, 4, deadline_s=2.0)
    driver.tick(1.0)
    assert running.end is not None
    assert (running.end.reason, running.end.stage) == (
        Reason.RUNNING_TIMEOUT,
        Stage.PREFILL if not running.ids else Stage.DECODE,
    )
    assert waiting.end is not None
    assert waiting.end.reason is Reason.WAITING_TIMEOUT
    driver.tick(1.0)
    assert deadline.end is not None
    assert deadline.end.reason is Reason.DEADLINE
    driver.tick(5.0)
    assert driver.info() is None


def test_a_turn_that_was_being_stored_is_history_all_the_same() -> None:
    """T1: a pause comes too late for what has ended."""
    driver = Driver()
    driver.open()
    driver.hold_store = True
    told = driver.turn("r1", A, 3)
    while driver.engine.has_work:
        driver.step()
    ask = pause(driver, PauseMode.ABORT)
    assert driver.replies[ask] == 1
    driver.hold_store = False
    driver.answer_store()
    assert told.end is not None
    assert told.end.outcome is Outcome.LENGTH
    info = driver.info()
    assert info is not None
    assert info.turns == 1


def test_going_on_without_a_pause_is_nothing() -> None:
    driver = Driver()
    assert driver.replies[send(driver, Resume)] == 0
    told = driver.submit("r1", A, 3)
    driver.run()
    assert told.ids == expected(A, 3)
