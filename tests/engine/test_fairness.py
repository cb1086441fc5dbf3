"""Tenants with weights share a worker (rule P7)."""

from __future__ import annotations

from actors.engine.fairness import FORGET_ABOVE, Fairness
from tests.engine.driver import Driver, expected
from tests.engine.test_admission import request


def started(driver: Driver) -> str:
    """Tenants in the order in which their requests began, one at a time."""
    order: list[tuple[float, str]] = []
    while driver.step():
        for live in driver.engine.core.requests.running():
            entry = (live.first_forward_at or 0.0, live.submit.tenant)
            if entry not in order:
                order.append(entry)
    return "".join(tenant for _, tenant in order)


def flood(driver: Driver, tenant: str, count: int, weight: float, prompt: int = 8) -> None:
    for n in range(count):
        driver.submit(f"{tenant}{n}", [n] * prompt, 4, tenant=tenant, weight=weight)


def test_a_tenant_that_floods_the_queue_does_not_delay_another() -> None:
    """P7: ten requests of a, then two of b: b's come in between. Without weights they wait for all of a's."""
    driver = Driver(max_running=1)
    flood(driver, "a", 10, 1.0)
    flood(driver, "b", 2, 1.0)
    assert started(driver) == "abab" + "a" * 8
    driver = Driver(max_running=1)
    flood(driver, "a", 10, 0.0)
    flood(driver, "b", 2, 0.0)
    assert started(driver) == "a" * 10 + "bb"


def test_shares_follow_the_weights() -> None:
    """P7: a tenant of weight 3 has three of four turns while both have something to do."""
    driver = Driver(max_running=1)
    flood(driver, "a", 12, 3.0)
    flood(driver, "b", 12, 1.0)
    first = started(driver)[:12]
    assert (first.count("a"), first.count("b")) == (9, 3)


def test_shares_are_of_tokens_and_not_of_requests() -> None:
    """P7: requests that are four times as long get a quarter of the turns."""
    driver = Driver(max_running=1, forecast=False)
    flood(driver, "a", 12, 1.0, prompt=39)
    flood(driver, "b", 12, 1.0, prompt=9)
    first = started(driver)[:10]
    assert (first.count("a"), first.count("b")) == (2, 8)


def test_priority_comes_first_and_text_is_untouched() -> None:
    driver = Driver(max_running=1)
    flood(driver, "a", 3, 1.0)
    told = driver.submit("b", [9] * 8, 4, tenant="b", weight=0.1, priority=1)
    assert started(driver)[:2] == "ba"
    assert told.ids == expected([9] * 8, 4)


def test_who_was_away_has_no_credit_and_is_forgotten() -> None:
    """A tenant starts where the queue stands; those it has passed leave nothing behind."""
    fairness = Fairness()
    late = [request(8, 4, 0, tenant="late", weight=1.0) for _ in range(2)]
    for n in range(200):
        one = request(8, 4, 0, tenant=f"t{n}", weight=1.0)
        fairness.place(one, 100)
        fairness.started(one)
        fairness.place(again := request(8, 4, 0, tenant=f"t{n}", weight=1.0), 100)
        fairness.started(again)
    assert len(fairness) <= FORGET_ABOVE + 1
    for one in late:
        fairness.place(one, 10)
    assert late[0].fair_start >= 100
    assert late[1].fair_start == late[0].fair_start + 10


def test_the_age_of_the_queue_is_that_of_who_is_longest_in_it() -> None:
    """P2, T5: whatever comes and is refused meanwhile."""
    driver = Driver(max_running=1, max_waiting=2)
    driver.submit("a", [1] * 8, 30)
    driver.step()
    assert driver.engine.snapshot().oldest_arrival is None
    driver.tick(1.0)
    at = driver.now
    driver.submit("b", [2] * 8, 4)
    driver.tick(1.0)
    driver.submit("c", [3] * 8, 4)
    driver.submit("refused", [4] * 8, 4)
    assert driver.engine.snapshot().oldest_arrival == at
    driver.abort(rids=("b",))
    assert driver.engine.snapshot().oldest_arrival == at + 1.0
    driver.run()
    assert driver.engine.snapshot().oldest_arrival is None
