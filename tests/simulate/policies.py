"""Who decides in a simulated cluster: Remora's own policy code, and two baselines to hold against it."""

from __future__ import annotations

import hashlib
import math
import random
from bisect import bisect, insort
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from actors.messages import SessionMode
from actors.records import SessionRecord
from cluster.membership import Worker, WorkerState
from cluster.placement import Directory, SessionKey, choose, ending_cost
from cluster.rebalance import Heat, rebalance
from cluster.reconcile import Drain, Kill, Spawn, reconcile
from cluster.scaling import Scaler
from configs import AutoscaleConfig, RebalanceConfig
from tests.simulate.model import SimWorker, Turn

MAX_SESSIONS = 2**62
MAX_RUNNING = 32


@dataclass(slots=True)
class Orders:
    """What a policy wants done now. `moved`: sessions whose KV on their old worker is of no more use."""

    spawn: int = 0
    drain: list[str] = field(default_factory=list)
    kill: list[str] = field(default_factory=list)
    moved: list[tuple[SessionKey, str]] = field(default_factory=list)


class Policy(Protocol):
    """`workers` is the simulation's own table; a policy sees what heartbeats tell, and what it did itself."""

    name: str

    def started(self, worker: SimWorker, now: float) -> None: ...

    def ready(self, name: str, now: float) -> None: ...

    def gone(self, name: str, now: float) -> None: ...

    def place(self, key: SessionKey, turn: Turn, full: str | None) -> str | None:
        """Where this turn runs. `full`: the worker named before has no room in its queue."""

    def close(self, key: SessionKey) -> None: ...

    def tick(self, workers: dict[str, SimWorker], parked: int, now: float) -> Orders: ...


class Remora:
    """Directory, placement, reconciling, autoscaling and rebalancing, as the pool runs them."""

    name = "remora"

    def __init__(self, autoscale: AutoscaleConfig, move: RebalanceConfig, start: int) -> None:
        self.directory = Directory()
        self._scaler = Scaler(autoscale, MAX_RUNNING, start)
        self._move = move
        self._heat = Heat()
        self._table: dict[str, Worker] = {}
        self._records: dict[SessionKey, SessionRecord] = {}
        self._generation = 0

    def started(self, worker: SimWorker, now: float) -> None:
        self._table[worker.name] = Worker(worker.name, WorkerState.STARTING, now, now)

    def ready(self, name: str, now: float) -> None:
        self._table[name].move(WorkerState.READY, "answered", now)

    def gone(self, name: str, now: float) -> None:
        self._table.pop(name).move(WorkerState.DEAD, "drained", now)
        self.directory.remove_worker(name)

    def place(self, key: SessionKey, turn: Turn, full: str | None) -> str | None:
        seat = self.directory.get(key)
        worker = self._table.get(seat.worker_id) if seat is not None else None
        if seat is not None and worker is not None and worker.state is not WorkerState.DRAINING:
            return seat.worker_id if full is None else None  # P3: shed before stickiness is broken.
        ready = [one for one in self._table.values() if one.state is WorkerState.READY]
        untold = self.directory.untold
        owner = choose(ready, self.directory.count, MAX_SESSIONS, coming=untold.coming, gone=untold.gone)
        if owner is not None:
            self._seat(key, owner)
        return owner

    def close(self, key: SessionKey) -> None:
        record = self._records.pop(key, None)
        if record is not None:
            self.directory.remove(key, record.generation)

    def tick(self, workers: dict[str, SimWorker], parked: int, now: float) -> Orders:
        untold = self.directory.untold
        for name, worker in self._table.items():
            if worker.state is not WorkerState.STARTING:
                worker.heard_at, worker.stats = now, workers[name].stats(now)
                untold.heard(name, untold.asked(name), worker.stats["sessions_taken"], now)
        orders = Orders()
        desired = self._scaler.look(self._table.values(), parked, now, untold.gone)
        cost = lambda worker: ending_cost(worker, self.directory)  # noqa: E731
        for action in reconcile(desired, self._table.values(), (), cost, may_spawn=True):
            match action:
                case Spawn():
                    orders.spawn += 1
                case Drain(name):
                    self._table[name].move(WorkerState.DRAINING, "no longer wanted", now)
                    orders.drain.append(name)
                case Kill(name):
                    orders.kill.append(name)
        if self._move.enabled:
            orders.moved = list(self._rebalance(now))
        return orders

    def _rebalance(self, now: float) -> Iterator[tuple[SessionKey, str]]:
        requests = {name: one.load for name, one in self._table.items() if one.state is WorkerState.READY}
        self._heat, moves = rebalance(self._heat, requests, self.directory.count, self.directory.keys, self._move, now)
        for move in moves:
            self._seat(move.key, move.target)
            yield move.key, move.source

    def _seat(self, key: SessionKey, owner: str) -> None:
        known = self._records.get(key)
        if known is None:
            self._generation += 1
            record = new_record(key, owner, self._generation)
        else:
            record = replace(known, owner=owner, epoch=known.epoch + 1)
        self._records[key] = record
        self.directory.give(record)


def new_record(key: SessionKey, owner: str, generation: int) -> SessionRecord:
    return SessionRecord(
        tenant=key[0],
        session_id=key[1],
        generation=generation,
        epoch=1,
        owner=owner,
        mode=SessionMode.STREAMING,
        idle_timeout_s=None,
        capacity_tokens=None,
        turns=0,
        tokens=0,
        last_active_at=0.0,
    )


class QueueLength:
    """The baselines' autoscaler, as Ray Serve's: requests over target; done when wanted for a delay on end. The newest
    worker goes first."""

    def __init__(self, settings: AutoscaleConfig, start: int) -> None:
        self._settings = settings
        self._desired = start
        self._since: tuple[int, float] | None = None
        self.alive: list[str] = []

    def orders(self, requests: int, now: float) -> Orders:
        settings = self._settings
        wanted = math.ceil(requests / settings.requests_per_worker)
        wanted = min(max(wanted, settings.min_workers), settings.max_workers)
        direction = (wanted > self._desired) - (wanted < self._desired)
        if not direction:
            self._since = None
        elif self._since is None or self._since[0] != direction:
            self._since = (direction, now)
        delay_s = settings.up_delay_s if direction > 0 else settings.down_delay_s
        if self._since is not None and now - self._since[1] >= delay_s:
            self._desired, self._since = wanted, None
        excess = len(self.alive) - self._desired
        leaving, self.alive = (self.alive[-excess:], self.alive[:-excess]) if excess > 0 else ([], self.alive)
        return Orders(spawn=max(0, -excess), drain=leaving)


class HashAffinity:
    """A session's turns go where a hash ring says, or to the next two on it when that queue is full. Workers that come
    and go move what the ring moves."""

    name = "hash affinity"
    VIRTUAL = 100
    FALLBACKS = 2

    def __init__(self, autoscale: AutoscaleConfig, start: int) -> None:
        self._scaler = QueueLength(autoscale, start)
        self._ring: list[tuple[int, str]] = []

    def started(self, worker: SimWorker, now: float) -> None:
        self._scaler.alive.append(worker.name)

    def ready(self, name: str, now: float) -> None:
        for virtual in range(self.VIRTUAL):
            insort(self._ring, (_hash(f"{name}/{virtual}"), name))

    def gone(self, name: str, now: float) -> None:
        self._leave(name)

    def place(self, key: SessionKey, turn: Turn, full: str | None) -> str | None:
        if not self._ring:
            return None
        at = bisect(self._ring, (_hash(key[1]), ""))
        tried: list[str] = []
        for step in range(len(self._ring)):
            name = self._ring[(at + step) % len(self._ring)][1]
            if name not in tried:
                if full is None or full in tried:
                    return name
                tried.append(name)
            if len(tried) > self.FALLBACKS:
                break
        return None

    def close(self, key: SessionKey) -> None:
        """A ring keeps nothing."""

    def tick(self, workers: dict[str, SimWorker], parked: int, now: float) -> Orders:
        orders = self._scaler.orders(parked + sum(one.load for one in workers.values() if not one.draining), now)
        for name in orders.drain:
            self._leave(name)
        return orders

    def _leave(self, name: str) -> None:
        self._ring = [one for one in self._ring if one[1] != name]


class NoAffinity:
    """Every turn goes to the less loaded of two workers taken at random, another one when its queue is full."""

    name = "no affinity"

    def __init__(self, autoscale: AutoscaleConfig, start: int, seed: int) -> None:
        self._scaler = QueueLength(autoscale, start)
        self._random = random.Random(seed)
        self._ready: list[SimWorker] = []
        self._known: dict[str, SimWorker] = {}

    def started(self, worker: SimWorker, now: float) -> None:
        self._scaler.alive.append(worker.name)
        self._known[worker.name] = worker

    def ready(self, name: str, now: float) -> None:
        self._ready.append(self._known[name])

    def gone(self, name: str, now: float) -> None:
        self._known.pop(name, None)
        self._ready = [one for one in self._ready if one.name != name]

    def place(self, key: SessionKey, turn: Turn, full: str | None) -> str | None:
        if not self._ready:
            return None
        pair = [self._random.choice(self._ready) for _ in range(2)]
        return min(pair, key=lambda one: one.load).name

    def close(self, key: SessionKey) -> None:
        """Nothing is kept of a session."""

    def tick(self, workers: dict[str, SimWorker], parked: int, now: float) -> Orders:
        orders = self._scaler.orders(parked + sum(one.load for one in workers.values() if not one.draining), now)
        leaving = set(orders.drain)
        self._ready = [one for one in self._ready if one.name not in leaving]
        return orders


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
