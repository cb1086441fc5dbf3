"""Where sessions live, and where a new one should: pure (rules P1, P2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from actors.records import SessionRecord
from cluster.membership import Room, Worker

EXPECTED_TOKENS = 1024
"""KV tokens that a session is taken to need before it has any."""

MAX_RUNNING = 64
"""Requests in the batch of a worker that does not say how many it takes."""
STALE_COST = 1.0
"""How much headroom a worker that is to be replaced must have beyond another's: what it is given moves again soon."""
IDLE_WEIGHT = 0.25
"""How much a token of an idle session's KV counts beside one of a request's."""

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

    Lookups take constant time; taking a worker out takes time for its own sessions only. A session costs about 330
    bytes: its key once, while each worker's and each tenant's name is kept once for all.
    """

    def __init__(self) -> None:
        self._seats: dict[SessionKey, Seat] = {}
        self._by_worker: dict[str, dict[SessionKey, None]] = {}
        self._names: dict[str, str] = {}
        """Workers that have sessions here, and tenants."""

    def __len__(self) -> int:
        return len(self._seats)

    def get(self, key: SessionKey) -> Seat | None:
        return self._seats.get(key)

    def count(self, worker_id: str) -> int:
        return len(self._by_worker.get(worker_id, ()))

    def keys(self, worker_id: str) -> Iterator[SessionKey]:
        """A worker's sessions, those that came last before the others; not to be changed meanwhile."""
        return reversed(self._by_worker.get(worker_id, {}))

    def put(self, record: SessionRecord) -> None:
        """Note a session's owner, unless something newer is known."""
        key = (self._names.setdefault(record.tenant, record.tenant), record.session_id)
        seat = self._seats.get(key)
        if seat is not None and (seat.generation, seat.epoch) > (record.generation, record.epoch):
            return
        if seat is not None:
            self._unseat(key, seat)
        owner = self._names.setdefault(record.owner, record.owner)
        self._seats[key] = Seat(owner, record.epoch, record.generation)
        self._by_worker.setdefault(owner, {})[key] = None

    def remove(self, key: SessionKey, generation: int) -> None:
        """A session was closed. That of another generation stays."""
        seat = self._seats.get(key)
        if seat is not None and seat.generation == generation:
            del self._seats[key]
            self._unseat(key, seat)

    def remove_worker(self, worker_id: str) -> set[SessionKey]:
        """Forget a worker's sessions: the next turn of each finds its owner anew. Returns them."""
        moved = set(self._by_worker.pop(worker_id, ()))
        self._names.pop(worker_id, None)
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
        del keys[key]
        if not keys:
            del self._by_worker[seat.worker_id]
            self._names.pop(seat.worker_id, None)


def headroom(worker: Worker, owned: int) -> float:
    """How much of a worker is predicted to be left, in shares of a whole one: 2.0 when it has nothing to do, and below
    0 when more is coming than it can hold.

    Its batch, less what runs and waits, and its KV cache, less what requests hold or, as far as the worker predicts it,
    will need in the end. Sessions placed there that it has not heard of yet count as a request each. KV of idle
    sessions can be had back, so that it counts little: were it counted in full, a new worker with an empty cache would
    get every new session until it drowned in them.
    """
    room = worker.room
    if room is None or room.stats is not worker.stats:
        room = worker.room = _room(worker)
    coming = owned - room.known
    return room.left - coming * room.each if coming > 0 else room.left


def _room(worker: Worker) -> Room:
    """From a heartbeat; kept until the next one, since each new session is weighed against every worker."""
    stats, pages = worker.stats, worker.stats.get("pages", {})
    page_size, kv_tokens = stats.get("page_size", 0), max(1, stats.get("kv_tokens", 0))
    max_running = stats.get("max_running", MAX_RUNNING)
    requests = max(pages.get("request_owned", 0) * page_size, stats.get("predicted_kv_tokens", 0))
    needed = requests + IDLE_WEIGHT * pages.get("session_held", 0) * page_size
    left = 2.0 - worker.load / max_running - needed / kv_tokens
    return Room(stats, left, 1 / max_running + EXPECTED_TOKENS / kv_tokens, int(stats.get("sessions", 0)))


def choose(workers: Iterable[Worker], sessions: Callable[[str], int], max_sessions: int) -> str | None:
    """The worker for a new session: most headroom, then fewest sessions, then by name; those that are to be replaced
    count as fuller than they are.

    `sessions(worker_id)`: how many it has, those on their way included. Full workers are passed over; None when all
    are.
    """
    candidates = [
        (STALE_COST * worker.stale - headroom(worker, owned), owned, worker.worker_id)
        for worker in workers
        if (owned := sessions(worker.worker_id)) < max_sessions
    ]
    return min(candidates)[-1] if candidates else None


def ending_cost(worker: Worker, directory: Directory) -> tuple[int, ...]:
    """What is lost when this worker goes: live turns, then sessions, then resident KV (rule P6)."""
    pages = worker.stats.get("pages", {})
    return worker.load, directory.count(worker.worker_id), int(pages.get("session_held", 0))
