"""Which workers there are and how they are: pure, with time as an argument (monotonic seconds).

Written by the pool alone. A worker that keeps silent, or that answers while a step of its never returns, becomes
SUSPECT, then DEAD; a dead one never comes back: what returns under its name is another worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from configs import ClusterConfig

SLOWER_THAN_EVER = 3
"""A worker may take so many times as long for a turn of its loop as it has taken for the slowest."""


class WorkerState(str, Enum):
    """STARTING: has not answered yet. SUSPECT: silent or stuck for a while; keeps its sessions, gets no new ones.
    DRAINING: ends when its requests have. DEAD: ended, or declared so and killed."""

    STARTING = "starting"
    READY = "ready"
    SUSPECT = "suspect"
    DRAINING = "draining"
    DEAD = "dead"


TRANSITIONS: dict[WorkerState, frozenset[WorkerState]] = {
    WorkerState.STARTING: frozenset({WorkerState.READY, WorkerState.DEAD}),
    WorkerState.READY: frozenset({WorkerState.SUSPECT, WorkerState.DRAINING, WorkerState.DEAD}),
    WorkerState.SUSPECT: frozenset({WorkerState.READY, WorkerState.DRAINING, WorkerState.DEAD}),
    WorkerState.DRAINING: frozenset({WorkerState.DEAD}),
    WorkerState.DEAD: frozenset(),
}


class IllegalMove(AssertionError):
    """A worker was moved where it cannot go. The message tells its story."""


@dataclass(frozen=True, slots=True)
class Room:
    """What placement makes of the heartbeat `stats`: how much is left, what each session takes that is coming, and what
    all sessions together take that the worker has."""

    stats: Mapping[str, Any]
    left: float
    each: float
    of_sessions: float


@dataclass(slots=True)
class Worker:
    """One worker as the pool sees it. `stats` is its last heartbeat; `cause` says why it is dead; `closed`: it has
    answered that it takes nothing in any more that can run elsewhere; `stalled_s`: for how long its heartbeats have
    told of one and the same turn of its loop. `release`: label of what it is made of (`cluster.release`), and `stale`:
    others are started now. `adopted`: it was found running. `kept_at`: since then it is there only for sessions that
    are pinned to its weights."""

    worker_id: str
    state: WorkerState
    since: float
    heard_at: float
    ever_ready: bool = False
    closed: bool = False
    stalled_s: float = 0.0
    release: str = ""
    stale: bool = False
    adopted: bool = False
    kept_at: float | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)
    room: Room | None = None
    cause: str = ""
    story: list[str] = field(default_factory=list)

    def move(self, state: WorkerState, cause: str, now: float) -> None:
        line = f"{now:.3f} {self.state.value} -> {state.value}: {cause}"
        if state not in TRANSITIONS[self.state]:
            raise IllegalMove(f"worker {self.worker_id}: {line}; before that: {' | '.join(self.story) or 'nothing'}")
        self.story.append(line)
        self.state, self.since, self.cause = state, now, cause

    @property
    def alive(self) -> bool:
        return self.state is not WorkerState.DEAD

    @property
    def weights(self) -> str:
        """Version of its model's weights; empty until it has said so."""
        return str(self.stats.get("weights", ""))

    @property
    def load(self) -> int:
        """Requests running and waiting at the last heartbeat."""
        return int(self.stats.get("running", 0)) + int(self.stats.get("waiting", 0))


class Membership:
    """The table of workers. Dead ones are handed out by the call that finds them so, and kept until `forget`."""

    def __init__(self, config: ClusterConfig, now: float) -> None:
        self._config = config
        self._workers: dict[str, Worker] = {}
        self._looked_at = now

    def __contains__(self, worker_id: object) -> bool:
        return worker_id in self._workers

    def get(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    def all(self) -> list[Worker]:
        """In order of arrival."""
        return list(self._workers.values())

    def alive(self, worker_id: str) -> bool:
        worker = self._workers.get(worker_id)
        return worker is not None and worker.alive

    def ready(self) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.state is WorkerState.READY]

    def add(self, worker_id: str, now: float, *, adopted: bool = False) -> Worker:
        """A worker that is being started, or was found running. A name is used once."""
        if worker_id in self._workers:
            raise IllegalMove(f"worker {worker_id} is known already")
        worker = Worker(worker_id, WorkerState.STARTING, now, now, adopted=adopted)
        self._workers[worker_id] = worker
        return worker

    def heard(self, worker_id: str, stats: Mapping[str, Any], now: float) -> bool:
        """A heartbeat was answered. Returns whether the worker is ready only since now."""
        worker = self._workers.get(worker_id)
        if worker is None or not worker.alive:
            return False
        worker.stalled_s = self._stalled_s(worker, stats, now)
        worker.heard_at, worker.stats = now, stats
        doubtful = worker.state is WorkerState.SUSPECT and worker.stalled_s > self._stuck_s(worker) / 2
        if worker.state in (WorkerState.STARTING, WorkerState.SUSPECT) and not doubtful:
            worker.move(WorkerState.READY, "answered", now)
            worker.ever_ready = True
            return True
        return False

    def drain(self, worker_id: str, now: float) -> None:
        self._workers[worker_id].move(WorkerState.DRAINING, "no longer wanted", now)

    def died(self, worker_id: str, cause: str, now: float) -> bool:
        """Returns whether this is news."""
        worker = self._workers.get(worker_id)
        if worker is None or not worker.alive:
            return False
        worker.move(WorkerState.DEAD, cause, now)
        return True

    def forget(self, worker_id: str) -> None:
        """Drop a dead worker from the table."""
        worker = self._workers.pop(worker_id, None)
        if worker is not None and worker.alive:
            raise IllegalMove(f"worker {worker_id} is {worker.state.value}; only a dead one can be forgotten")

    def look(self, now: float) -> list[Worker]:
        """Apply the clocks. Returns those that are dead only since now.

        If nobody has looked for so long that it would matter, it was the pool that stood still (a suspended machine):
        that time counts against no worker.
        """
        gap, self._looked_at = now - self._looked_at, now
        if gap > self._config.suspect_s:
            for worker in self._workers.values():
                worker.heard_at += gap
                worker.since += gap
        return [worker for worker in self._workers.values() if self._judge(worker, now)]

    def _judge(self, worker: Worker, now: float) -> bool:
        silent = now - worker.heard_at
        if worker.state is WorkerState.STARTING:
            limit = self._config.start_timeout_s
            if now - worker.since > limit:
                worker.move(WorkerState.DEAD, f"not ready after {limit:.0f} s", now)
        elif worker.alive and silent > self._config.dead_s:
            worker.move(WorkerState.DEAD, f"silent for {silent:.1f} s", now)
        elif worker.alive and worker.stalled_s > self._stuck_s(worker):
            worker.move(WorkerState.DEAD, f"stuck: a step has not returned for {worker.stalled_s:.1f} s", now)
        elif worker.state is WorkerState.READY and (doubt := self._doubt(worker, silent)):
            worker.move(WorkerState.SUSPECT, doubt, now)
            return False
        else:
            return False
        return worker.state is WorkerState.DEAD

    def _doubt(self, worker: Worker, silent: float) -> str:
        """Why this worker should get no new sessions; empty if there is no reason."""
        if silent > self._config.suspect_s:
            return f"silent for {silent:.1f} s"
        stalled = worker.stalled_s > self._stuck_s(worker) / 2
        return f"a step has not returned for {worker.stalled_s:.1f} s" if stalled else ""

    def _stalled_s(self, worker: Worker, stats: Mapping[str, Any], now: float) -> float:
        """How long the same turn of the worker's loop has been seen, by this clock. Time without a heartbeat counts
        little: the whole worker stood still then, which is for `dead_s` to judge."""
        turn = _loop(stats).get("turn", 0)
        if not turn or turn != _loop(worker.stats).get("turn", 0):
            return 0.0
        return worker.stalled_s + min(now - worker.heard_at, self._config.suspect_s)

    def _stuck_s(self, worker: Worker) -> float:
        """For how long a turn of this worker's loop may take, in seconds."""
        loop = _loop(worker.stats)
        if not self._config.stuck_s:
            return math.inf
        if not loop.get("steps_returned", 0):
            return max(self._config.stuck_s, self._config.start_timeout_s)
        return max(self._config.stuck_s, SLOWER_THAN_EVER * loop.get("slowest_turn_s", 0.0))


def _loop(stats: Mapping[str, Any]) -> Mapping[str, float]:
    """What a heartbeat says of the worker's loop (see `actors.worker.progress`)."""
    loop: Mapping[str, float] = stats.get("loop", {})
    return loop
