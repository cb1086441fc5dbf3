"""Requests that begin alike and come at once: what they share is computed once and held once (rule K3)."""

from __future__ import annotations

import pytest

from actors.engine.planner import MAX_LOOKED_UP
from actors.engine.request import RequestState
from actors.messages import Outcome
from tests.engine.driver import Driver, Told, expected

LONG = [token % 250 for token in range(3, 203)]
OTHER = [token % 250 for token in range(90, 290)]


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


def burst(depth: int, *prompts: list[int], **settings: object) -> tuple[Driver, list[Told]]:
    driver = Driver(depth=depth, **{"max_step_tokens": 32, "worth_sharing_tokens": 32, **settings})
    return driver, [driver.submit(f"r{n}", prompt, 8) for n, prompt in enumerate(prompts)]


def prefilled(driver: Driver) -> int:
    return driver.engine.snapshot().prefill_tokens


def states(driver: Driver) -> dict[str, RequestState]:
    return {request.submit.rid: request.state for request in driver.engine.core.requests.live()}


def test_what_they_share_is_computed_and_held_once(depth: int) -> None:
    """K3, field case N60: four replies to one prompt cost little more than one."""
    driver, told = burst(depth, LONG, LONG, LONG, LONG)
    while states(driver)["r3"] is not RequestState.DECODE:
        driver.step()
    pages = len(LONG) // 4
    held = driver.engine.snapshot().pages.request_owned
    assert held <= pages + 4 * 4, "the prompt's full pages once, and what each has of its own"
    driver.run()
    assert [one.ids for one in told] == [expected(LONG, 8)] * 4
    assert prefilled(driver) <= len(LONG) + 3 * 8
    assert [one.end.cached_tokens for one in told] == [0, 196, 196, 196]


def test_who_shares_nothing_is_not_held_up(depth: int) -> None:
    """P7: the one that waits is passed by."""
    driver, told = burst(depth, LONG, LONG, OTHER)
    driver.step()
    assert states(driver)["r1"] is RequestState.WAITING
    assert states(driver)["r2"] is RequestState.PREFILL
    driver.run()
    assert [one.ids for one in told] == [expected(LONG, 8), expected(LONG, 8), expected(OTHER, 8)]


def test_an_abort_of_the_first_lets_the_next_one_begin(depth: int) -> None:
    """A3: it begins with what was computed by then."""
    driver, told = burst(depth, LONG, LONG, LONG)
    driver.step()
    driver.step()
    driver.abort(rids=("r0",))
    driver.run()
    assert told[0].end.outcome is Outcome.ABORT
    assert [one.ids for one in told[1:]] == [expected(LONG, 8)] * 2
    assert prefilled(driver) < 2 * len(LONG)


@pytest.mark.parametrize("common", [0, 60, 140])
def test_less_than_half_is_not_waited_for(depth: int, common: int) -> None:
    driver, told = burst(depth, LONG, LONG[:common] + OTHER[common:])
    driver.step()
    waits = states(driver)["r1"] is RequestState.WAITING
    assert waits is (common > 100)
    driver.run()
    assert told[1].ids == expected(LONG[:common] + OTHER[common:], 8)


def test_short_prompts_begin_at_once(depth: int) -> None:
    """Computing a few tokens twice costs less than a step."""
    driver, _ = burst(depth, LONG[:31], LONG[:31], max_step_tokens=128)
    driver.step()
    assert RequestState.WAITING not in states(driver).values()


def test_nobody_waits_for_what_may_not_be_shared(depth: int) -> None:
    """K3: another salt, another tenant, or no prefix cache at all."""
    driver, _ = burst(depth, LONG)
    driver.submit("salted", LONG, 8, cache_salt="s")
    driver.submit("foreign", LONG, 8, tenant="u")
    driver.step()
    assert RequestState.WAITING not in states(driver).values()
    driver, _ = burst(depth, LONG, LONG, prefix_cache=False)
    driver.step()
    assert RequestState.WAITING not in states(driver).values()


def test_first_turns_share_and_later_ones_go_on_from_their_slots(depth: int) -> None:
    """K1, K2: what is appended to a slot is not looked for in the index, so nobody waits for it."""
    driver = Driver(depth=depth, max_step_tokens=32, worth_sharing_tokens=32)
    for name in ("a", "b"):
        driver.open(name)
    told = [driver.turn(f"first-{name}", LONG, 8, session_id=name) for name in ("a", "b")]
    driver.step()
    assert states(driver)["first-b"] is RequestState.WAITING
    driver.run()
    assert [one.end.cached_tokens for one in told] == [0, 196]
    later = [driver.turn(f"then-{name}", OTHER, 8, session_id=name) for name in ("a", "b")]
    driver.step()
    assert RequestState.WAITING not in states(driver).values()
    driver.run()
    assert [one.ids for one in later] == [expected(LONG + expected(LONG, 8) + OTHER, 8)] * 2


def test_who_comes_first_does_not_wait_for_who_comes_after(depth: int) -> None:
    """P7: one of low priority may get little of each step, so that one of high priority computes for itself."""
    driver, _ = burst(depth, LONG)
    driver.step()
    driver.submit("urgent", LONG, 8, priority=1)
    driver.step()
    assert states(driver)["urgent"] is RequestState.PREFILL


def test_those_that_wait_are_not_looked_up_in_every_step(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """P7: what many wait for takes many steps, none of which may take longer for it."""
    driver, told = burst(depth, *[LONG] * 50, max_running=4)
    begin, begun = driver.engine.core.kv.begin, list[int]()

    def counted(uid: int, *args: object, **fields: object) -> int:
        begun.append(uid)
        return begin(uid, *args, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(driver.engine.core.kv, "begin", counted)
    most = 0
    while states(driver)["r0"] is not RequestState.DECODE:
        before = len(begun)
        driver.step()
        most = max(most, len(begun) - before)
    assert len(begun) <= 50 + 4
    assert most <= 1 + MAX_LOOKED_UP, "nor is a crowd looked up in one step"
    driver.run()
    assert [one.ids for one in told] == [expected(LONG, 8)] * 50


def test_nobody_waits_for_a_long_prompt_that_gets_nothing(depth: int) -> None:
    """P7, K3: one that begins like a long prompt, which has to wait for an older one, computes for itself."""
    driver = Driver(depth=depth, page_size=16, kv_tokens=8192, max_context=4096, max_step_tokens=64)
    driver.submit("older", [n % 250 for n in range(2000)], 4)
    driver.step()
    begin = [7 * n % 250 for n in range(160)]
    driver.submit("long", [*begin, *(3 * n % 250 for n in range(2000))], 4)
    driver.step()
    short = driver.submit("short", [*begin, 1, 2, 3], 4)
    for _ in range(8 + depth):
        driver.step()
    assert short.ids
    driver.run()
    assert short.ids == expected([*begin, 1, 2, 3], 4)


def test_nobody_goes_on_waiting_for_a_long_prompt_that_no_longer_gets_anything(depth: int) -> None:
    """P7, K3: the long one was the first, and one of higher priority has come; shorter ones have the other half."""
    driver = Driver(depth=depth, page_size=16, kv_tokens=16384, max_context=4096, max_step_tokens=64)
    begin = [7 * n % 250 for n in range(160)]
    driver.submit("long", [*begin, *(3 * n % 250 for n in range(2000))], 4)
    short = driver.submit("short", [*begin, 1, 2, 3], 4)
    driver.step()
    assert states(driver)["short"] is RequestState.WAITING
    driver.submit("urgent", [n % 250 for n in range(3000)], 4, priority=1)
    for number in range(2):
        driver.submit(f"middle{number}", [number, *(11 * n % 250 for n in range(600))], 4)
    for _ in range(8 + depth):
        driver.step()
    assert short.ids
    driver.run()
    assert short.ids == expected([*begin, 1, 2, 3], 4)


def test_nobody_waits_for_one_of_many_long_prompts_that_have_waited(depth: int) -> None:
    """P7, K3: what goes by waiting goes to those before it."""
    driver = Driver(depth=depth, page_size=16, kv_tokens=65536, max_context=4096, max_step_tokens=128)
    crowd = [driver.submit(f"long{number}", [number, *(3 * n % 250 for n in range(999))], 4) for number in range(30)]
    while sum(bool(told.ids) for told in crowd) < 18:
        driver.step()
    short = driver.submit("short", [29, *(3 * n % 250 for n in range(159))], 4)
    for _ in range(8 + depth):
        driver.step()
    assert short.ids


def test_short_prompts_are_admitted_however_many_long_ones_have_begun(depth: int) -> None:
    """P7: what replies leave of a step is shared, and does not say who may begin."""
    driver = Driver(depth=depth, kv_tokens=4096, max_step_tokens=16, mixed_prefill_tokens=4)
    driver.submit("reply", [1, 2, 3], 400)
    driver.step()
    for number in range(4):
        driver.submit(f"long{number}", [number * 50 + place % 50 for place in range(200)], 4)
        driver.step()
    short = driver.submit("short", [9], 4)
    for _ in range(2 + depth):
        driver.step()
    assert short.ids
