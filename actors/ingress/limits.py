"""What a tenant may use (rule S10): requests and tokens per minute, and requests at a time.

These three are counted *per ingress replica*, for requests that generate: with N replicas a tenant gets up to N times
as much, depending on how its connections spread. Within a replica, requests per minute and concurrent requests are
exact. Tokens are charged when a request ends, because nobody knows them before: what is under way when the budget runs
out still ends, and its tokens become a debt that is paid off before anything else is let in. How many sessions may be
open is counted by the pool, over the whole cluster, and exact.

A minute's budget is a bucket that refills evenly, so that a caller who waits for as long as Retry-After says is let in.
A refusal costs nothing of any budget (rule S7), and comes before the body is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from actors.ingress.errors import ApiError
from actors.ingress.metrics import Metrics
from actors.messages import Reason
from configs import TenantLimits

MINUTE_S = 60.0
_CONCURRENT_RETRY_S = 1.0
"""When one of a tenant's own requests ends is not known."""
_DUST = 1e-6
"""Below what rounding leaves of a whole request or token."""


class Bucket:
    """`per_minute` at most, refilled evenly. Its level may fall below 0: a debt. `per_minute` 0: no limit."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def resize(self, per_minute: int, now: float) -> None:
        """Another limit from now on: what was used stays used."""
        if per_minute == self.per_minute:
            return
        used = self.per_minute - self.level(now)
        self.per_minute, self._level, self._at = per_minute, per_minute - used, now

    def level(self, now: float) -> float:
        """What may be used now."""
        refilled = (now - self._at) * self.per_minute / MINUTE_S
        return min(float(self.per_minute), self._level + refilled)

    def take(self, amount: float, now: float) -> None:
        if self.per_minute:
            self._level, self._at = self.level(now) - amount, now

    def wait_s(self, now: float) -> float:
        """Until there is one to take; 0 when there is."""
        missing = 1.0 - self.level(now)
        return missing * MINUTE_S / self.per_minute if self.per_minute and missing > _DUST else 0.0

    def full_s(self, now: float) -> float:
        """Until it is full again."""
        return (self.per_minute - self.level(now)) * MINUTE_S / self.per_minute if self.per_minute else 0.0


class Usage:
    """What one tenant uses here."""

    def __init__(self, limits: TenantLimits, now: float) -> None:
        self.limits = limits
        self.open = 0
        self.requests = Bucket(limits.requests_per_minute, now)
        self.tokens = Bucket(limits.tokens_per_minute, now)

    def resize(self, limits: TenantLimits, now: float) -> None:
        self.limits = limits
        self.requests.resize(limits.requests_per_minute, now)
        self.tokens.resize(limits.tokens_per_minute, now)

    def headers(self, now: float) -> dict[str, str]:
        """As the OpenAI API has them, for the limits there are."""
        found = {}
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket.per_minute:
                found[f"x-ratelimit-limit-{name}"] = str(bucket.per_minute)
                found[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.level(now) + _DUST)))
                found[f"x-ratelimit-reset-{name}"] = duration(bucket.full_s(now))
        return found


class Admission:
    """One request that was let in. `end` it with the tokens it cost; what it cost besides may be told later."""

    def __init__(self, usage: Usage, headers: dict[str, str], clock: Callable[[], float]) -> None:
        self.headers = headers
        self._usage = usage
        self._clock = clock
        self._ended = False

    def end(self, tokens: int) -> None:
        if not self._ended:
            self._ended = True
            self._usage.open -= 1
        self._usage.tokens.take(tokens, self._clock())


class Limiter:
    """The door of all requests that generate."""

    def __init__(self, limits_of: Callable[[str], TenantLimits], metrics: Metrics, clock: Callable[[], float]) -> None:
        self._limits_of = limits_of
        self._metrics = metrics
        self._clock = clock
        self._tenants: dict[str, Usage] = {}

    def admit(self, tenant: str) -> Admission:
        """Raises ApiError (429) with Retry-After."""
        now = self._clock()
        usage = self.usage(tenant)
        limits = usage.limits
        if limits.concurrent_requests and usage.open >= limits.concurrent_requests:
            text = f"{limits.concurrent_requests} requests of this tenant are running, which is the limit."
            raise self._refusal(usage, "concurrent", text, _CONCURRENT_RETRY_S)
        for name, bucket in (("requests", usage.requests), ("tokens", usage.tokens)):
            wait_s = bucket.wait_s(now)
            if wait_s > 0:
                text = f"This tenant has used its {bucket.per_minute} {name} per minute."
                raise self._refusal(usage, name, text, wait_s)
        usage.open += 1
        usage.requests.take(1, now)
        return Admission(usage, usage.headers(now), self._clock)

    def usage(self, tenant: str) -> Usage:
        """What this tenant uses, under the limits that are in force now."""
        now, limits = self._clock(), self._limits_of(tenant)
        usage = self._tenants.get(tenant)
        if usage is None:
            usage = self._tenants[tenant] = Usage(limits, now)
        elif usage.limits != limits:
            usage.resize(limits, now)
        return usage

    def _refusal(self, usage: Usage, limit: str, text: str, wait_s: float) -> ApiError:
        self._metrics.limited.labels(limit).inc()
        retry_after = {"retry-after": str(max(1, math.ceil(wait_s - _DUST)))}
        headers = {**usage.headers(self._clock()), **retry_after}
        return ApiError(Reason.QUEUE_FULL, text, headers=headers)


def duration(seconds: float) -> str:
    """As the OpenAI API writes one: `6ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds * 1000) / 1000, 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"
