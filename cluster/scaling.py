"""From the pool's table of workers to how many there should be, look by look."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from cluster.autoscale import Decision, Memory, Observation, WorkerLoad, decide
from cluster.membership import Worker, WorkerState
from cluster.placement import EXPECTED_TOKENS, left_behind, load_now
from configs import AutoscaleConfig

logger = logging.getLogger("remora.pool")

WANTED = (WorkerState.STARTING, WorkerState.READY, WorkerState.SUSPECT)


def load_of(worker: Worker, gone: int = 0) -> WorkerLoad:
    """A worker's last heartbeat, as the decision wants it, less what `gone` sessions that it tells of have freed."""
    stats = worker.stats
    if worker.state is WorkerState.STARTING or not stats:
        return WorkerLoad(worker.worker_id, ready=False)
    pages, page_size = stats.get("pages", {}), int(stats.get("page_size", 0))
    kv_tokens, waiting = int(stats.get("kv_tokens", 0)), int(stats.get("waiting", 0))
    idle = round((1 - left_behind(worker, gone)) * int(pages.get("session_held", 0)) * page_size)
    now_used = int(pages.get("request_owned", 0)) * page_size + waiting * EXPECTED_TOKENS
    needed = max(now_used, int(stats.get("predicted_kv_tokens", 0)))
    return WorkerLoad(
        worker_id=worker.worker_id,
        ready=True,
        kv_tokens=kv_tokens,
        headroom_tokens=kv_tokens - idle - needed,
        idle_kv_tokens=idle,
        running=max(0, load_now(worker, gone) - waiting),
        waiting=waiting,
        oldest_wait_s=float(stats.get("oldest_wait_s", 0.0)),
        output_tokens_per_s=float(stats.get("rates", {}).get("output_tokens_per_s", 0.0)),
        sessions=max(0, int(stats.get("sessions", 0)) - gone),
    )


class Scaler:
    """Remembers between looks. `desired` is the last decision; it can be set from outside, and is gone on from."""

    def __init__(self, settings: AutoscaleConfig, max_running: int, desired: int) -> None:
        self._settings = settings
        self._max_running = max_running
        self._memory = Memory(min(max(desired, settings.min_workers), settings.max_workers))
        self.last = Decision(self._memory.desired, "the number to start with")

    @property
    def desired(self) -> int:
        return self._memory.desired

    def set(self, workers: int) -> None:
        """Somebody asked for this number: go on from there."""
        self._memory = Memory(min(max(workers, self._settings.min_workers), self._settings.max_workers))

    def look(
        self, workers: Iterable[Worker], parked: int, now: float, gone: Callable[[str], int] = lambda worker_id: 0
    ) -> int:
        """How many workers there should be. `parked`: requests that wait for any worker to be ready; `gone`: sessions
        of a worker's last heartbeat that it has no more."""
        wanted = [worker for worker in workers if worker.state in WANTED]
        loads = tuple(load_of(worker, gone(worker.worker_id)) for worker in wanted)
        before = self.desired
        self._memory, self.last = decide(
            self._memory, Observation(now, loads, parked), self._settings, self._max_running
        )
        if self.desired != before:
            logger.info("%d workers wanted instead of %d: %s", self.desired, before, self.last.reason)
        return self.desired
