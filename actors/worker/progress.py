"""Whether the worker's loop comes around: what tells a worker that is busy from one that is stuck."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Progress:
    """Written by the loop's thread; `row` may be called from any.

    A turn of the loop that does not end (a kernel that hangs, another rank that is gone, a lock) leaves the actor able
    to answer: its sign of life says nothing of its work. So the pool is told how the loop is doing, and judges that.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at: float | None = None
        self._turns = 0
        self._slowest_s = 0.0
        self._steps_returned = 0
        self._thread = 0

    def begin(self) -> None:
        """There is mail, or work: a turn begins."""
        self._turns += 1
        self._began_at = self._clock()
        self._thread = self._thread or threading.get_native_id()

    def end(self) -> None:
        began_at, self._began_at = self._began_at, None
        if began_at is not None:
            self._slowest_s = max(self._slowest_s, self._clock() - began_at)

    def step_returned(self) -> None:
        """A step came back, with a result or with an error."""
        self._steps_returned += 1

    def row(self) -> dict[str, float]:
        """`turn`: number of the turn that is going on; 0 between turns, when the loop waits for mail. `turn_s`: for how
        long it has. `slowest_turn_s`: the longest that has ended. `steps_returned`: 0 while the first is awaited.
        `thread`: the loop's, as the system counts (`top -H`, a debugger); 0 before the first turn."""
        began_at = self._began_at
        return {
            "turn": 0 if began_at is None else self._turns,
            "turn_s": 0.0 if began_at is None else round(self._clock() - began_at, 3),
            "slowest_turn_s": round(self._slowest_s, 3),
            "steps_returned": self._steps_returned,
            "thread": self._thread,
        }
