"""Where sessions live, and where a new one should: pure (rules P1, P2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from actors.records import SessionRecord
from cluster.membership import Room, Worker
from cluster.untold import Untold

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

    `untold` is told of every session that comes to a worker by the pool's decision, or goes.
    """

    def __init__(self, untold: Untold | None = None) -> None:
        self.untold = untold or Untold()
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

    def give(self, record: SessionRecord) -> None:
        """Note an owner that the pool has just chosen."""
        self.put(record)
        self.untold.came(record.owner, (record.tenant, record.session_id))

    def put(self, record: SessionRecord) -> None:
        """Note a session's owner, unless something newer is known."""
        key = (self._names.setdefault(record.tenant, record.tenant), record.session_id)
        seat = self._seats.get(key)
        if seat is not None and (seat.generation, seat.epoch) > (record.generation, record.epoch):
            return
        if seat is not None:
            self._unseat(key, seat)
            if (seat.worker_id, seat.generation) != (record.owner, record.generation):
                self.untold.went(seat.worker_id, key)
        owner = self._names.setdefault(record.owner, record.owner)
        self._seats[key] = Seat(owner, record.epoch, record.generation)
        self._by_worker.setdefault(owner, {})[key] = None

    def remove(self, key: SessionKey, generation: int) -> None:
        """A session was closed. That of another generation stays."""
        seat = self._seats.get(key)
        if seat is not None and seat.generation == generation:
            del self._seats[key]
            self._unseat(key, seat)
            self.untold.went(seat.worker_id, key)

    def remove_worker(self, worker_id: str) -> set[SessionKey]:
        """Forget a dead worker's sessions: the next turn of each finds its owner anew. Returns them."""
        self.untold.forget(worker_id)
        return self._empty(worker_id)

    def _empty(self, worker_id: str) -> set[SessionKey]:
        moved = set(self._by_worker.pop(worker_id, ()))
        self._names.pop(worker_id, None)
        for key in moved:
            del self._seats[key]
        return moved

    def replace(self, worker_id: str, records: Iterable[SessionRecord]) -> None:
        """What the store says a worker owns: sessions that it has closed by itself are gone from here too."""
        self._empty(worker_id)
        for record in records:
            self.put(record)

    def _unseat(self, key: SessionKey, seat: Seat) -> None:
        keys = self._by_worker[seat.worker_id]
        del keys[key]
        if not keys:
            del self._by_worker[seat.worker_id]
            self._names.pop(seat.worker_id, None)


def headroom(worker: Worker, coming: int = 0, gone: int = 0) -> float:
    """How much of a worker is predicted to be left, in shares of a whole one: 2.0 when it has nothing to do, and below
    0 when more is coming than it can hold.

    Its batch, less what runs and waits, and its KV cache, less what requests hold or, as far as the worker predicts it,
    will need in the end; as its heartbeat tells, and what has been decided since on top. `coming`: sessions placed
    there that it has not heard of yet, a request each. `gone`: sessions that it has no more, which have taken their
    part of the sessions' turns and KV with them. KV of idle sessions can be had back, so that it counts little: were it
    counted in full, a new worker with an empty cache would get every new session until it drowned in them.
    """
    room = worker.room
    if room is None or room.stats is not worker.stats:
        room = worker.room = _room(worker)
    return room.left + left_behind(worker, gone) * room.of_sessions - coming * room.each


def left_behind(worker: Worker, gone: int) -> float:
    """The share of a worker's sessions, from 0 to 1, that its heartbeat shows and that it has no more."""
    known = int(worker.stats.get("sessions", 0))
    return min(1.0, gone / known) if known else 0.0


def load_now(worker: Worker, gone: int) -> int:
    """Requests that run and wait: as the heartbeat tells, less those of sessions that have gone since."""
    return worker.load - round(left_behind(worker, gone) * min(worker.load, int(worker.stats.get("turns", 0))))


def _room(worker: Worker) -> Room:
    """From a heartbeat; kept until the next one, since each new session is weighed against every worker."""
    stats, pages = worker.stats, worker.stats.get("pages", {})
    page_size, kv_tokens = stats.get("page_size", 0), max(1, stats.get("kv_tokens", 0))
    max_running = stats.get("max_running", MAX_RUNNING)
    requests = max(pages.get("request_owned", 0) * page_size, stats.get("predicted_kv_tokens", 0))
    idle = IDLE_WEIGHT * pages.get("session_held", 0) * page_size
    left = 2.0 - worker.load / max_running - (requests + idle) / kv_tokens
    turns = min(worker.load, stats.get("turns", 0))
    of_turns = requests * turns / worker.load if turns else 0.0
    of_sessions = turns / max_running + (of_turns + idle) / kv_tokens
    return Room(stats, left, 1 / max_running + EXPECTED_TOKENS / kv_tokens, of_sessions)


def choose(
    workers: Iterable[Worker],
    sessions: Callable[[str], int],
    max_sessions: int,
    *,
    coming: Callable[[str], int],
    gone: Callable[[str], int],
) -> str | None:
    """The worker for a new session: most headroom, then fewest sessions, then by name; those that are to be replaced
    count as fuller than they are.

    Each by worker: `sessions`: how many it has, those on their way included; `coming` and `gone`: see `headroom`. Full
    workers are passed over; None when all are.
    """
    candidates = [
        (round(STALE_COST * worker.stale - headroom(worker, coming(name), gone(name)), 9), owned, name)
        for worker in workers
        if (owned := sessions(name := worker.worker_id)) < max_sessions
    ]
    return min(candidates)[-1] if candidates else None


def ending_cost(worker: Worker, directory: Directory) -> tuple[int, ...]:
    """What is lost when this worker goes: live turns, then sessions, then resident KV (rule P6)."""
    pages = worker.stats.get("pages", {})
    load = load_now(worker, directory.untold.gone(worker.worker_id))
    return load, directory.count(worker.worker_id), int(pages.get("session_held", 0))
