"""The arithmetic of limits, on a clock of its own."""

from __future__ import annotations

import random

import pytest

from actors.ingress.limits import Bucket, Limiter, duration
from actors.ingress.metrics import Metrics
from configs import TenantLimits


def test_a_bucket_never_gives_more_than_its_rate_and_a_burst() -> None:
    """S10: over any stretch of time, at most the minute's budget and what was refilled since; and whoever waits for as
    long as it was told gets one."""
    chance = random.Random(7)
    for per_minute in (1, 3, 60, 1000):
        bucket, now, taken, began = Bucket(per_minute, 50.0), 50.0, 0, 50.0
        for _ in range(400):
            wait_s = bucket.wait_s(now)
            if wait_s == 0:
                bucket.take(1, now)
                taken += 1
            elif chance.random() < 0.5:
                assert bucket.wait_s(now + wait_s) == 0
                assert bucket.wait_s(now + wait_s * 0.9) > 0
                now += wait_s
            now += chance.random() * 0.1
            assert taken <= per_minute + (now - began) * per_minute / 60 + 1e-3
            assert bucket.level(now) <= per_minute


def test_a_debt_is_paid_off_first() -> None:
    bucket = Bucket(600, 0.0)
    bucket.take(1600, 0.0)
    assert bucket.level(0.0) == -1000
    assert bucket.wait_s(0.0) == pytest.approx(100.1)
    assert bucket.full_s(0.0) == pytest.approx(160.0)


@pytest.mark.parametrize(("before", "after", "level"), [(10, 100, 93), (100, 10, 3), (0, 10, 10), (10, 5, -2)])
def test_another_limit_leaves_what_was_used_used(before: int, after: int, level: int) -> None:
    bucket = Bucket(before, 0.0)
    bucket.take(7, 0.0)
    bucket.resize(after, 0.0)
    assert bucket.level(0.0) == level
    assert bucket.level(1e9) == after


def test_without_a_limit_nobody_waits() -> None:
    bucket = Bucket(5, 0.0)
    bucket.take(1000, 0.0)
    bucket.resize(0, 0.0)
    bucket.take(1000, 0.0)
    assert (bucket.wait_s(0.0), bucket.full_s(0.0)) == (0.0, 0.0)


def test_durations_are_written_as_the_openai_api_does() -> None:
    assert [duration(s) for s in (0, 0.0061, 1, 1.5, 59.9996, 60, 360, 90.25)] == [
        "0ms", "7ms", "1s", "1.5s", "1m0s", "1m0s", "6m0s", "1m30.25s",
    ]  # fmt: skip


def test_limits_may_change_while_requests_run() -> None:
    """As when the keys file does: what is open is counted on."""
    limits = {"t": TenantLimits(concurrent_requests=1)}
    limiter = Limiter(lambda tenant: limits[tenant], Metrics(), lambda: 1000.0)
    first = limiter.admit("t")
    limits["t"] = TenantLimits(concurrent_requests=2, requests_per_minute=1)
    limiter.admit("t")
    assert limiter.usage("t").open == 2
    first.end(5)
    first.end(5)
    assert limiter.usage("t").open == 1
