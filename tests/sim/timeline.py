"""Simulated time: what will happen, in order. Nothing sleeps; a second costs what happens in it."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timeline:
    """Events of one instant happen in the order they were asked for. Times are seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, happen: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, happen))

    def after(self, delay_s: float, happen: Callable[[], None]) -> None:
        self.at(self.now + delay_s, happen)

    def step(self) -> bool:
        """Let the next thing happen. False: there is none."""
        if not self._heap:
            return False
        self.now, _, happen = heapq.heappop(self._heap)
        happen()
        return True

    def run(self, seconds: float) -> None:
        """Everything of the next `seconds`."""
        until = self.now + seconds
        while self._heap and self._heap[0][0] <= until:
            self.step()
        self.now = until
