"""Measuring a request that has several replies: it is one request all the same (rule E6, field case N10)."""

from __future__ import annotations

from typing import Protocol

from actors.ingress.metrics import RequestMeter
from actors.messages import Finished, Outcome, Reason, Stage

_WORST_FIRST = (Outcome.ABORT, Outcome.LENGTH, Outcome.STOP)


class Meter(Protocol):
    """What `Running` tells of one reply."""

    @property
    def first_token_s(self) -> float | None: ...

    def elapsed_s(self) -> float: ...

    def tokens(self, count: int) -> None: ...

    def charge(self, finished: Finished) -> None: ...

    def end(self, outcome: Outcome, reason: Reason | None = None, stage: Stage | None = None) -> None: ...

    def end_with(self, finished: Finished) -> None: ...


class PartMeter:
    """One reply's. Ends once."""

    def __init__(self, group: _Group) -> None:
        self._group = group
        self._last_token_s: float | None = None
        self._ended = False
        self._charged: Finished | None = None
        self.first_token_s: float | None = None

    def elapsed_s(self) -> float:
        return self._group.whole.elapsed_s()

    def tokens(self, count: int) -> None:
        now = self._group.whole.elapsed_s()
        if self._last_token_s is None:
            self.first_token_s = now
        self._group.whole.tokens(count, self._last_token_s)
        self._last_token_s = now

    def charge(self, finished: Finished) -> None:
        self._charged = finished

    def end(self, outcome: Outcome, reason: Reason | None = None, stage: Stage | None = None) -> None:
        if not self._ended:
            self._ended = True
            self._group.ended(outcome, reason, stage, self._charged)

    def end_with(self, finished: Finished) -> None:
        if not self._ended:
            self._group.whole.count(finished)
        self.charge(finished)
        self.end(finished.outcome, finished.reason, finished.stage)


class _Group:
    """Ends the request with its last reply: as an abort if any was one, else as cut short if any was."""

    def __init__(self, whole: RequestMeter, count: int) -> None:
        self.whole = whole
        self._left = count
        self._ends: list[tuple[Outcome, Reason | None, Stage | None]] = []

    def ended(self, outcome: Outcome, reason: Reason | None, stage: Stage | None, charged: Finished | None) -> None:
        self._ends.append((outcome, reason, stage))
        if charged is not None:
            self.whole.charge(charged)
        self._left -= 1
        if not self._left:
            self.whole.end(*min(self._ends, key=lambda end: _WORST_FIRST.index(end[0])))


def part_meters(whole: RequestMeter, count: int) -> list[Meter]:
    """A meter for each of `count` replies. All have to end for the request to end by itself."""
    if count == 1:
        return [whole]
    group = _Group(whole, count)
    return [PartMeter(group) for _ in range(count)]
