"""From the pool's table of workers to how many there should be, look by look."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from cluster.autoscale import Decision, Memory, Observation, WorkerLoad, decide
from cluster.membership import Worker, WorkerState
from cluster.placement import EXPECTED_TOKENS
from configs import AutoscaleConfig

logger = logging.getLogger("remora.pool")

WANTED = (WorkerState.STARTING, WorkerState.READY, WorkerState.SUSPECT)


class QueueAge:
    """How long the first request in a worker's queue has waited, out of what its heartbeats count.

    Requests start in order of arrival. With `received` requests so far of which `waiting` wait, the first of these was
    number `received - waiting + 1`: it has waited since the heartbeat that first counted so many.
    """

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def heard(self, at: float, received: int, waiting: int) -> float:
        """A heartbeat's figures, at monotonic time `at`. Returns seconds; 0 when nothing waits."""
        if self._counts and received < self._counts[-1][1]:
            self._counts.clear()
        if not self._counts or received > self._counts[-1][1]:
            self._counts.append((at, received))
        first = received - waiting + 1
        while len(self._counts) > 1 and self._counts[0][1] < first:
            self._counts.popleft()
        return at - self._counts[0][0] if waiting else 0.0


def load_of(worker: Worker, oldest_wait_s: float) -> WorkerLoad:
    """A worker's last heartbeat, as the decision wants it."""
    stats = worker.stats
    if worker.state is WorkerState.STARTING or not stats:
        return WorkerLoad(worker.worker_id, ready=False)
    pages, page_size = stats.get("pages", {}), int(stats.get("page_size", 0))
    kv_tokens, waiting = int(stats.get("kv_tokens", 0)), int(stats.get("waiting", 0))
    idle = int(pages.get("session_held", 0)) * page_size
    now_used = int(pages.get("request_owned", 0)) * page_size + waiting * EXPECTED_TOKENS
    needed = max(now_used, int(stats.get("predicted_kv_tokens", 0)))
    return WorkerLoad(
        worker_id=worker.worker_id,
        ready=True,
        kv_tokens=kv_tokens,
        headroom_tokens=kv_tokens - idle - needed,
        idle_kv_tokens=idle,
        running=int(stats.get("running", 0)),
        waiting=waiting,
        oldest_wait_s=oldest_wait_s,
        output_tokens_per_s=float(stats.get("rates", {}).get("output_tokens_per_s", 0.0)),
        sessions=int(stats.get("sessions", 0)),
    )


class Scaler:
    """Remembers between looks. `desired` is the last decision; it can be set from outside, and is gone on from."""

    def __init__(self, settings: AutoscaleConfig, max_running: int, desired: int) -> None:
        self._settings = settings
        self._max_running = max_running
        self._memory = Memory(min(max(desired, settings.min_workers), settings.max_workers))
        self._ages: dict[str, tuple[QueueAge, float, float]] = {}
        self.last = Decision(self._memory.desired, "the number to start with")

    @property
    def desired(self) -> int:
        return self._memory.desired

    def set(self, workers: int) -> None:
        """Somebody asked for this number: go on from there."""
        self._memory = Memory(min(max(workers, self._settings.min_workers), self._settings.max_workers))

    def look(self, workers: Iterable[Worker], parked: int, now: float) -> int:
        """How many workers there should be. `parked`: requests that wait for any worker to be ready."""
        wanted = [worker for worker in workers if worker.state in WANTED]
        loads = tuple(load_of(worker, self._oldest_wait_s(worker)) for worker in wanted)
        self._ages = {worker.worker_id: self._ages[worker.worker_id] for worker in wanted}
        before = self.desired
        self._memory, self.last = decide(
            self._memory, Observation(now, loads, parked), self._settings, self._max_running
        )
        if self.desired != before:
            logger.info("%d workers wanted instead of %d: %s", self.desired, before, self.last.reason)
        return self.desired

    def _oldest_wait_s(self, worker: Worker) -> float:
        """As of the worker's last heartbeat; what the worker itself says counts more."""
        age, heard_at, waited_s = self._ages.get(worker.worker_id, (QueueAge(), -1.0, 0.0))
        if worker.heard_at != heard_at and worker.stats:
            received, waiting = worker.stats.get("requests_received", 0), worker.stats.get("waiting", 0)
            waited_s = age.heard(worker.heard_at, int(received), int(waiting))
        self._ages[worker.worker_id] = (age, worker.heard_at, waited_s)
        return float(worker.stats.get("oldest_wait_s", waited_s))
