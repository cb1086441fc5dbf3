"""Deadlines in order. An entry is a promise to look, not to act: whoever takes it checks whether it still applies."""

from __future__ import annotations

import heapq
from enum import Enum


class Clock(Enum):
    """The three clocks of rule C1 and the absolute deadline."""

    WAITING = "waiting"
    RUNNING = "running"
    DEADLINE = "deadline"
    IDLE = "idle"


class Clocks:
    """A heap of (when, which clock, uid of the request or session)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Clock, int]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, at: float, clock: Clock, uid: int) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, clock, uid))

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: float) -> list[tuple[Clock, int]]:
        due = []
        while self._heap and self._heap[0][0] <= now:
            _, _, clock, uid = heapq.heappop(self._heap)
            due.append((clock, uid))
        return due
