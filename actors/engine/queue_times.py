"""How long requests waited before their first step, as a cumulative histogram."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

BOUNDS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


@dataclass(slots=True)
class QueueTimes:
    """One sample per request, whatever becomes of it later: a preemption does not add another."""

    count: int = 0
    sum_s: float = 0.0
    _by_bound: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))

    def add(self, seconds: float) -> None:
        self.count += 1
        self.sum_s += seconds
        self._by_bound[bisect_left(BOUNDS_S, seconds)] += 1

    def at_most(self) -> tuple[int, ...]:
        """Samples up to each of `BOUNDS_S`, and all of them."""
        total = 0
        return tuple(total := total + count for count in self._by_bound)
