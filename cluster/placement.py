"""Where sessions live, and where a new one should: pure (rules P1, P2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from actors.records import SessionRecord
from cluster.membership import Worker

EXPECTED_TOKENS = 1024
"""KV tokens that a session is taken to need before it has any."""

SessionKey = tuple[str, str]
"""(tenant, session id)."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A session's owner as last known."""

    worker_id: str
    epoch: int
    generation: int


class Directory:
    """Which worker owns which session. The store is the authority; this is what the pool counts with.

    Lookups take constant time; taking a worker out takes time for its own sessions only.
    """

    def __init__(self) -> None:
        self._seats: dict[SessionKey, Seat] = {}
        self._by_worker: dict[str, set[SessionKey]] = {}

    def __len__(self) -> int:
        return len(self._seats)

    def get(self, key: SessionKey) -> Seat | None:
        return self._seats.get(key)

    def count(self, worker_id: str) -> int:
        return len(self._by_worker.get(worker_id, ()))

    def put(self, record: SessionRecord) -> None:
        """Note a session's owner, unless something newer is known."""
        key = (record.tenant, record.session_id)
        seat = self._seats.get(key)
        if seat is not None and (seat.generation, seat.epoch) > (record.generation, record.epoch):
            return
        if seat is not None:
            self._unseat(key, seat)
        self._seats[key] = Seat(record.owner, record.epoch, record.generation)
        self._by_worker.setdefault(record.owner, set()).add(key)

    def remove(self, key: SessionKey, generation: int) -> None:
        """A session was closed. That of another generation stays."""
        seat = self._seats.get(key)
        if seat is not None and seat.generation == generation:
            del self._seats[key]
            self._unseat(key, seat)

    def remove_worker(self, worker_id: str) -> set[SessionKey]:
        """Forget a worker's sessions: the next turn of each finds its owner anew. Returns them."""
        moved = self._by_worker.pop(worker_id, set())
        for key in moved:
            del self._seats[key]
        return moved

    def replace(self, worker_id: str, records: Iterable[SessionRecord]) -> None:
        """What the store says a worker owns: sessions that it has closed by itself are gone from here too."""
        self.remove_worker(worker_id)
        for record in records:
            self.put(record)

    def _unseat(self, key: SessionKey, seat: Seat) -> None:
        keys = self._by_worker[seat.worker_id]
        keys.discard(key)
        if not keys:
            del self._by_worker[seat.worker_id]


def headroom(worker: Worker, owned: int) -> int:
    """KV tokens a worker is predicted to have left: its cache, less what sessions and requests hold, less what the
    sessions without any KV yet are expected to need. May be negative."""
    stats = worker.stats
    pages = stats.get("pages", {})
    held = (pages.get("session_held", 0) + pages.get("request_owned", 0)) * stats.get("page_size", 0)
    without = max(0, owned - int(stats.get("resident_sessions", 0)))
    return int(stats.get("kv_tokens", 0) - held - without * EXPECTED_TOKENS)


def choose(workers: Iterable[Worker], sessions: Callable[[str], int], max_sessions: int) -> str | None:
    """The worker for a new session: most headroom, then shortest queue, then fewest sessions, then by name.

    `sessions(worker_id)`: how many it has, those on their way included. Full workers are passed over; None when all
    are.
    """
    candidates = [
        (-headroom(worker, owned), worker.load, owned, worker.worker_id)
        for worker in workers
        if (owned := sessions(worker.worker_id)) < max_sessions
    ]
    return min(candidates)[-1] if candidates else None


def ending_cost(worker: Worker, directory: Directory) -> tuple[int, ...]:
    """What is lost when this worker goes: live turns, then sessions, then resident KV (rule P6)."""
    pages = worker.stats.get("pages", {})
    return worker.load, directory.count(worker.worker_id), int(pages.get("session_held", 0))
