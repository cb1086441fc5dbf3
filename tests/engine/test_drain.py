"""A worker that is being drained: what runs goes on, and nothing comes in that can run elsewhere (rule T5)."""

from __future__ import annotations

import pytest

from actors.engine.core import LEFT_S
from actors.messages import Drain, LeaveSession, OnBusy, Outcome, Reason, Reply, SamplingParams, SessionLeft, Submit
from tests.engine.driver import Driver, expected

A, B = list(range(1, 11)), list(range(20, 27))


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


def drain(driver: Driver) -> None:
    outputs = driver.engine.handle(Drain(ask=99), driver.now)
    assert outputs == [Reply(ask=99, value=True)]


def test_running_turns_finish_while_idle_sessions_are_sent_away(depth: int) -> None:
    """T5: running turns finish; the refusal says that another worker may take it."""
    driver = Driver(depth=depth)
    driver.open("busy")
    driver.open("idle")
    running = driver.turn("r1", A, 20, session_id="busy")
    driver.tick()
    drain(driver)
    sent_away = driver.turn("r2", B, session_id="idle")
    assert sent_away.end is not None
    assert (sent_away.end.outcome, sent_away.end.reason) == (Outcome.ABORT, Reason.WORKER_DRAINING)
    assert sent_away.ids == []
    driver.run()
    assert running.end is not None
    assert (running.end.outcome, running.ids) == (Outcome.LENGTH, expected(A, 20))
    again = driver.turn("r3", B, session_id="busy")
    assert again.end is not None
    assert again.end.reason is Reason.WORKER_DRAINING


def test_a_busy_session_still_answers_for_itself(depth: int) -> None:
    """S6: a second turn is refused, waits or takes over where the first one runs, also while it is drained."""
    driver = Driver(depth=depth)
    driver.open()
    driver.turn("r1", A, 50)
    driver.tick()
    drain(driver)
    refused = driver.turn("r2", B)
    assert refused.end is not None
    assert refused.end.reason is Reason.SESSION_BUSY
    queued = driver.turn("r3", B, on_busy=OnBusy.QUEUE)
    driver.run()
    assert queued.end is not None
    assert queued.end.outcome is Outcome.LENGTH


def test_requests_without_a_session_are_sent_away(depth: int) -> None:
    driver = Driver(depth=depth)
    drain(driver)
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    submit = Submit(key="k", rid="r", ingress="i", tenant="t", input_ids=tuple(A), sampling=sampling)
    (end,) = driver.engine.handle(submit, driver.now)
    assert getattr(end, "reason", None) is Reason.WORKER_DRAINING
    assert driver.engine.num_live == 0


def leave(driver: Driver, session_id: str = "s") -> bool:
    record = driver.store[("t", session_id)].record
    message = LeaveSession(tenant="t", session_id=session_id, generation=record.generation, epoch=record.epoch, ask=98)
    outputs = driver.engine.handle(message, driver.now)
    (answer,) = [one.value for one in outputs if isinstance(one, Reply)]
    assert isinstance(answer, SessionLeft)
    return answer.left


def test_an_idle_session_is_given_up_and_not_taken_back(depth: int) -> None:
    """P3, T3: between turns; a turn that still comes for it is sent to be placed anew."""
    driver = Driver(depth=depth)
    driver.open()
    driver.turn("r1", A)
    driver.run()
    assert leave(driver)
    assert driver.engine.snapshot().pages.session_held == 0
    late = driver.turn("r2", B)
    assert late.end is not None
    assert (late.end.reason, late.end.redirect) == (Reason.WORKER_LOST, True)
    assert driver.info() is None
    assert not leave(driver)


def test_a_busy_session_is_kept(depth: int) -> None:
    """P3: a session moves only between turns."""
    driver = Driver(depth=depth)
    driver.open()
    running = driver.turn("r1", A, 20)
    driver.tick()
    assert not leave(driver)
    driver.run()
    assert running.end is not None
    assert running.end.outcome is Outcome.LENGTH
    assert leave(driver)


def test_a_session_that_was_not_taken_over_is_read_again_after_a_while(depth: int) -> None:
    """The pool died in the middle of moving it: it is not lost."""
    driver = Driver(depth=depth)
    driver.open()
    driver.turn("r1", A)
    driver.run()
    assert leave(driver)
    driver.tick(LEFT_S + 1)
    again = driver.turn("r2", B)
    driver.run()
    assert again.end is not None
    assert (again.end.outcome, again.end.turn) == (Outcome.LENGTH, 2)
