"""A network of named parties with seeded delays, reordering, loss, duplication and partitions.

Messages between two parties may overtake each other, as actor calls of different concurrency groups do. Whoever is
gone does not receive; the sender is told so by `refused`, as a call to a dead actor is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.sim.timeline import Timeline

Handler = Callable[[str, Any], None]


@dataclass
class Link:
    """One direction between two parties. Delays are drawn uniformly from [low, high] seconds; `loss` and `duplicate`
    are chances. `fates`: what happens to the next messages of a kind, before chance is asked."""

    low: float
    high: float
    loss: float = 0.0
    duplicate: float = 0.0
    cut: bool = False
    fates: dict[str, deque[str | float]] = field(default_factory=dict)


class Network:
    """`attach` parties, then `send`. Deterministic for a seed and an order of calls."""

    def __init__(self, timeline: Timeline, seed: int, low: float = 0.001, high: float = 0.003) -> None:
        self._timeline = timeline
        self._random = Random(seed)
        self._default = (low, high)
        self._links: dict[tuple[str, str], Link] = {}
        self._handlers: dict[str, Handler] = {}
        self.in_flight = 0
        """Messages on their way, polls and their answers not counted."""
        self.lost = 0

    def attach(self, party: str, handler: Handler) -> None:
        self._handlers[party] = handler

    def detach(self, party: str) -> None:
        self._handlers.pop(party, None)

    def link(self, sender: str, receiver: str) -> Link:
        """The link, to be changed at will."""
        if (sender, receiver) not in self._links:
            self._links[(sender, receiver)] = Link(*self._default)
        return self._links[(sender, receiver)]

    def set_fate(self, sender: str, receiver: str, kind: str, fate: str | float) -> None:
        """What happens to the next message of this class name: "lose", "twice", or a delay in seconds."""
        self.link(sender, receiver).fates.setdefault(kind, deque()).append(fate)

    def send(
        self,
        sender: str,
        receiver: str,
        message: Any,
        *,
        refused: Callable[[], None] | None = None,
        quiet: bool = False,
    ) -> None:
        """`quiet`: part of the chatter that never ends; it does not count as in flight."""
        link = self.link(sender, receiver)
        for delay_s in self._fate(link, type(message).__name__):
            self.in_flight += not quiet
            self._timeline.after(delay_s, lambda: self._arrive(sender, receiver, message, refused, quiet))

    def _fate(self, link: Link, kind: str) -> list[float]:
        """Delays of the copies that will arrive."""
        delays = [self._random.uniform(link.low, link.high)]
        fates = link.fates.get(kind)
        fate = fates.popleft() if fates else None
        lost, doubled = self._random.random() < link.loss, self._random.random() < link.duplicate
        if link.cut or fate == "lose" or (fate is None and lost):
            self.lost += 1
            return []
        if isinstance(fate, float):
            return [fate]
        if fate == "twice" or (fate is None and doubled):
            delays.append(self._random.uniform(link.low, link.high) * 3)
        return delays

    def _arrive(
        self, sender: str, receiver: str, message: Any, refused: Callable[[], None] | None, quiet: bool
    ) -> None:
        self.in_flight -= not quiet
        handler = self._handlers.get(receiver)
        if handler is not None:
            handler(sender, message)
        elif refused is not None:
            refused()
