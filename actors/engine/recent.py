"""Short memories with an expiry: aborts that came before their request, and requests that ended a moment ago."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class Recent:
    """A set whose members are forgotten `ttl_s` after they were added, and the oldest when there are too many."""

    def __init__(self, ttl_s: float, limit: int = 65536) -> None:
        self._ttl_s = ttl_s
        self._limit = limit
        self._expiry: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._expiry)

    def add(self, item: Hashable, now: float) -> None:
        self._expiry.pop(item, None)
        self._expiry[item] = now + self._ttl_s
        while len(self._expiry) > self._limit:
            self._expiry.popitem(last=False)

    def has(self, item: Hashable, now: float) -> bool:
        return self._expiry.get(item, now) > now

    def has_since(self, item: Hashable, other: Hashable, now: float) -> bool:
        """Whether the item is there, and was added after the other, if that is there."""
        return self._expiry.get(item, now) > max(now, self._expiry.get(other, now))

    def take(self, item: Hashable, now: float) -> bool:
        """Whether the item is there; it is not, afterwards."""
        return self._expiry.pop(item, now) > now

    def discard(self, item: Hashable) -> None:
        self._expiry.pop(item, None)

    def expire(self, now: float) -> None:
        while self._expiry:
            item, at = next(iter(self._expiry.items()))
            if at > now:
                return
            del self._expiry[item]
