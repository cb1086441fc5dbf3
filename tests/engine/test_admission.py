"""Who is let into the batch: by what a request will probably need, measured on those before it (rules K4, K5)."""

from __future__ import annotations

from typing import Any

from actors.engine.forecast import AT_FIRST_TOKENS, MAX_CARE, Forecast
from actors.engine.queue_times import BOUNDS_S
from actors.engine.request import Request
from actors.messages import Outcome, SamplingParams, Submit
from tests.engine.driver import Driver, expected

EARLY = SamplingParams(max_tokens=40, stop_token_ids=tuple(range(256)))
"""Asks for 40 tokens and stops at the first."""


def roomy(**settings: object) -> Driver:
    """30 pages of 4 tokens."""
    return Driver(page_size=4, kv_tokens=120, max_step_tokens=64, **settings)


def running(driver: Driver) -> int:
    driver.step()
    return driver.engine.core.requests.num_running


def test_at_first_the_whole_of_max_tokens_is_counted_on() -> None:
    """K4: 8 + 40 tokens are 12 pages each: two fit in 30, and nobody is preempted."""
    driver = roomy(forecast=True)
    told = [driver.submit(f"r{n}", [n] * 8, 40) for n in range(4)]
    assert running(driver) == 2
    driver.run()
    assert driver.engine.snapshot().preemptions == 0
    assert all(t.ids == expected([n] * 8, 40) for n, t in enumerate(told))


def test_without_a_forecast_whoever_has_room_for_its_prompt_starts() -> None:
    """K4: more run at once, and some have to stop for a while."""
    driver = roomy(forecast=False)
    for n in range(4):
        driver.submit(f"r{n}", [n] * 8, 40)
    assert running(driver) == 4
    driver.run()
    assert driver.engine.snapshot().preemptions > 0


def test_requests_that_stop_early_let_more_in() -> None:
    """The share of max_tokens that requests use is measured: ten that used a fortieth let all four start at once."""
    driver = roomy(forecast=True)
    for n in range(10):
        driver.submit(f"early{n}", [n] * 8, sampling=EARLY)
        driver.run()
    for n in range(4):
        driver.submit(f"r{n}", [n] * 8, 40)
    assert running(driver) == 4


def test_a_request_alone_starts_whatever_is_expected_of_it() -> None:
    """K5: what fits is never kept waiting for a forecast."""
    driver = roomy(forecast=True)
    for _ in range(20):
        driver.engine.core.forecast.preempted()
    told = driver.submit("all", [1] * 60, 60)
    driver.run()
    assert told.end.outcome is Outcome.LENGTH


def test_time_in_the_queue_is_measured_once() -> None:
    """C1: session case M08: from arrival to the first step; a preemption adds no second sample."""
    driver = roomy(forecast=False)
    for n in range(4):
        driver.submit(f"r{n}", [n] * 8, 40)
    driver.tick(2.0)
    driver.run()
    stats = driver.engine.snapshot()
    assert stats.preemptions > 0
    assert stats.queue_count == 4
    assert 8.0 <= stats.queue_sum_s < 8.2
    waited = dict(zip((*BOUNDS_S, "all"), stats.queue_at_most, strict=True))
    assert (waited[1.0], waited[3.0], waited["all"]) == (0, 4, 4)


def request(prompt: int, asked: int | None, made: int, room: int = 1000, **fields: Any) -> Request:
    fields.setdefault("tenant", "t")
    sampling = SamplingParams(max_tokens=asked)
    submit = Submit(key="k", rid="k", ingress="i", input_ids=(), sampling=sampling, **fields)
    found = Request(1, submit, 0.0)
    found.tokens, found.prompt_len, found.max_tokens = [0] * (prompt + made), prompt, asked or room
    return found


def test_what_is_expected_lies_between_what_is_there_and_what_is_allowed() -> None:
    forecast = Forecast()
    assert forecast.total_tokens(request(10, 40, 0)) == 50
    assert forecast.total_tokens(request(10, None, 0)) == 10 + AT_FIRST_TOKENS
    assert forecast.total_tokens(request(10, None, 0, room=30)) == 40
    forecast.share = 0.1
    assert forecast.total_tokens(request(10, 40, 0)) == 14
    assert forecast.total_tokens(request(10, 40, 20)) == 31
    assert Forecast(measured=False).total_tokens(request(10, 40, 3)) == 14


def test_the_averages_follow_what_ends_by_itself() -> None:
    """Aborted requests, and those of the other kind, say nothing."""
    forecast = Forecast()
    forecast.learn(request(10, 40, 1), Outcome.ABORT)
    assert (forecast.share, forecast.open_tokens) == (1.0, AT_FIRST_TOKENS)
    for _ in range(300):
        forecast.learn(request(10, 40, 10), Outcome.STOP)
    assert abs(forecast.share - 0.25) < 0.01
    assert forecast.open_tokens == AT_FIRST_TOKENS
    for _ in range(300):
        forecast.learn(request(10, None, 30), Outcome.STOP)
    assert abs(forecast.open_tokens - 30) < 2


def test_preemptions_make_it_careful_for_a_while() -> None:
    forecast = Forecast()
    forecast.share = 0.25
    for _ in range(10):
        forecast.preempted()
    assert forecast.total_tokens(request(0, 40, 0)) == 40
    assert forecast.care == MAX_CARE
    for _ in range(200):
        forecast.learn(request(0, 40, 10), Outcome.LENGTH)
    assert forecast.care == 1.0
