"""P7: what the oldest prompt leaves of a step goes to the shortest one, and yet nobody waits for ever: a bound for each
prompt that is in the batch, whatever comes after it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actors.engine.policy import ageing
from actors.engine.request import RequestState
from tests.engine.driver import Driver, Told

STEP_TOKENS, SEATS, CONTEXT = 32, 4, 512


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law after every verb would take most of the time, and is what other tests are for."""
    monkeypatch.setattr("tests.engine.driver.check", lambda engine: None)


def prompt_of(number: int, length: int) -> list[int]:
    return [number % 250, *((number * 7 + place) % 250 for place in range(length - 1))]


@pytest.mark.parametrize("depth", [0, 1])
def test_a_prompt_of_middling_length_does_not_wait_for_the_older_ones_end(depth: int) -> None:
    """400 tokens behind a very long prompt, and in each step a new one of 60: once it has waited for 400 tokens, which
    are 50 steps, a quarter of each step is its own. The first of those have their token at once."""
    driver = Driver(depth=depth, page_size=16, kv_tokens=40_000, max_context=16_384, max_step_tokens=128)
    driver.submit("older", prompt_of(1, 16_000), 1)
    driver.step()
    told, steps, short = driver.submit("middling", prompt_of(2, 400), 1), 0, list[Told]()
    while not told.ids:
        short.append(driver.submit(f"short{steps}", prompt_of(3 + steps, 60), 1))
        driver.step()
        steps += 1
        assert steps <= 400 // 8 + 400 // 32 + 2 + depth
        assert short[max(0, steps - 1 - depth)].ids or not depth <= steps - 1 < 20


@pytest.mark.parametrize("depth", [0, 1])
def test_a_short_prompt_does_not_wait_for_all_that_have_waited(depth: int) -> None:
    """A crowd of middling ones, half of which has been computed: by now each of the others has waited for more than its
    length, and one behind the other they take eighty steps yet. Whoever needs less than a quarter of a step has it."""
    driver = Driver(depth=depth, page_size=16, kv_tokens=40_000, max_context=1024, max_step_tokens=128)
    crowd = [driver.submit(f"middling{number}", prompt_of(number, 400), 1) for number in range(48)]
    while sum(bool(told.ids) for told in crowd) < 24:
        driver.step()
    short = driver.submit("short", prompt_of(100, 30), 1)
    for _ in range(2 + depth):
        driver.step()
    assert short.ids
    assert sum(bool(told.ids) for told in crowd) < 26, "it is those that it did not wait for"


Arrival = tuple[int, int]
"""Tokens and priority."""
ARRIVALS = st.lists(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 1)), max_size=3), min_size=1, max_size=8)
LONG_FIRST: list[list[Arrival]] = [[(90, 1), (16, 0)], [(16, 0)], [(16, 0)], [(16, 0)], [(16, 0)]]
"""One after the other is first in order, and has half; in each step a short one takes the rest."""


@settings(max_examples=25, deadline=None)
@given(arrivals=ARRIVALS, first=st.integers(20, 200), depth=st.sampled_from([0, 1]))
@example(arrivals=LONG_FIRST, first=60, depth=0)
@example(arrivals=LONG_FIRST, first=200, depth=1)
def test_every_prompt_in_the_batch_is_computed_within_a_bound(
    arrivals: list[list[Arrival]], first: int, depth: int
) -> None:
    """The same arrivals over and over. When a prompt of R tokens has been in the batch for R / ageing steps, only those
    that are in it with it can go before it in what goes by waiting: what was left of those that it found there, and
    less than R of each that came later; a quarter of each step is theirs and its own, at least."""
    driver = Driver(
        depth=depth, page_size=4, kv_tokens=8192, max_context=CONTEXT, max_step_tokens=STEP_TOKENS, max_running=SEATS,
        max_waiting=4096, prefix_cache=False,
    )  # fmt: skip
    requests = driver.engine.core.requests
    driver.submit("first", prompt_of(0, first), 1)
    step_at, latest = 0, dict[int, float]()
    while step_at < 250:
        for number, (length, priority) in enumerate(arrivals[step_at % len(arrivals)]):
            driver.submit(f"{step_at}/{number}", prompt_of(step_at + number, length), 1, priority=priority)
        driver.step()
        step_at += 1
        prompts = [one for one in requests.running() if one.state is RequestState.PREFILL]
        there = sum(one.prompt_len for one in prompts)
        for one in prompts:
            if one.uid not in latest:
                own = one.prompt_len
                waits = own / ageing(driver.engine.settings)
                latest[one.uid] = step_at + waits + (there + (SEATS - 1) * own) / (STEP_TOKENS // 4) + 1 + depth
            assert step_at <= latest[one.uid], f"{one.submit.key}: {one.remaining} of {one.prompt_len} left"
