"""What the pool has decided about sessions that a worker's last heartbeat does not tell yet: pure.

A heartbeat is up to `cluster.heartbeat_s` old, and many sessions are placed, moved and closed meanwhile. Whoever goes
by heartbeats counts these on top. A worker says how many sessions it has ever taken in, which tells exactly how many of
those that were placed there it has heard of, whatever else comes, closes and expires.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

COMING_S = 30.0
"""For how long a session counts as coming whose first turn does not come: others may be moved there to stay idle."""


@dataclass(slots=True)
class _Coming:
    """A session that was placed. `told_at`: when a heartbeat came without it; `counts` False: it has gone since."""

    key: object
    told_at: float | None = None
    counts: bool = True


@dataclass(slots=True)
class _News:
    """Of one worker. `gone`, `gone_told`: sessions taken from it or closed there so far, and those that its heartbeat
    does without. `taken`: sessions that it had ever taken in at that heartbeat; None before the first."""

    coming: deque[_Coming] = field(default_factory=deque)
    by_key: dict[object, _Coming] = field(default_factory=dict)
    gone: int = 0
    gone_told: int = 0
    taken: int | None = None


class Untold:
    """One for a pool. Times are on any one clock, in seconds; costs what has changed since the last heartbeat."""

    def __init__(self) -> None:
        self._news: dict[str, _News] = {}

    def coming(self, worker_id: str) -> int:
        """Sessions placed there that it has not heard of."""
        news = self._news.get(worker_id)
        return 0 if news is None else len(news.by_key)

    def gone(self, worker_id: str) -> int:
        """Sessions that its heartbeat shows and that it has no more."""
        news = self._news.get(worker_id)
        return 0 if news is None else news.gone - news.gone_told

    def came(self, worker_id: str, key: object) -> None:
        """A session was placed there, or is on its way to be."""
        news = self._news.setdefault(worker_id, _News())
        if key not in news.by_key:
            news.by_key[key] = coming = _Coming(key)
            news.coming.append(coming)

    def went(self, worker_id: str, key: object) -> None:
        """A session was closed there, or moved away. One that no heartbeat has shown stays in the order of those that
        come, uncounted: the worker has most likely taken it in by now."""
        news = self._news.setdefault(worker_id, _News())
        coming = news.by_key.pop(key, None)
        if coming is None:
            news.gone += 1
        else:
            coming.counts = False

    def asked(self, worker_id: str) -> int:
        """A heartbeat is being asked for: what `heard` is to be told when it comes."""
        news = self._news.get(worker_id)
        return 0 if news is None else news.gone

    def heard(self, worker_id: str, asked: int, taken: int, now: float) -> None:
        """A heartbeat came. `asked`: what `asked` said when it was asked for; `taken`: how many sessions the worker has
        ever taken in."""
        news = self._news.setdefault(worker_id, _News())
        news.gone_told = max(news.gone_told, asked)
        before, news.taken = news.taken, taken
        arrived = 0 if before is None else max(0, taken - before)
        while news.coming and (arrived > 0 or _late(news.coming[0], now)):
            self._drop_first(news)
            arrived -= 1
        for coming in reversed(news.coming):
            if coming.told_at is not None:
                break
            coming.told_at = now

    def forget(self, worker_id: str) -> None:
        """The worker is dead."""
        self._news.pop(worker_id, None)

    def _drop_first(self, news: _News) -> None:
        coming = news.coming.popleft()
        if coming.counts:
            del news.by_key[coming.key]


def _late(coming: _Coming, now: float) -> bool:
    return coming.told_at is not None and now - coming.told_at >= COMING_S
