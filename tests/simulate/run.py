"""One trace under one policy, event by event."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from cluster.placement import SessionKey
from tests.simulate.model import SimWorker, Turn, WorkerModel
from tests.simulate.policies import Policy
from tests.simulate.trace import SessionTrace

BEGIN, TURN, END, READY, CLOSE, TICK = range(6)
TICK_S = 1.0
IDLE_S = 3600.0
TRIES = 3
"""Workers that a turn knocks at before it is shed."""


@dataclass(slots=True)
class Outcome:
    """What came of it. `queue_s`: from a turn's arrival to the beginning of its prefill."""

    policy: str
    turns: int = 0
    shed: int = 0
    moves: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    gpu_s: float = 0.0
    most_workers: int = 0
    changes: int = 0
    """How often the number of workers was raised or lowered."""
    queue_s: array[float] = field(default_factory=lambda: array("f"))

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / max(1, self.prompt_tokens)

    def queue_p(self, share: float) -> float:
        ordered = sorted(self.queue_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Session:
    """`home`: the worker that ran its last turn. `trace`: None when all its turns are over."""

    __slots__ = ("history", "home", "key", "next_turn", "number", "trace")

    def __init__(self, trace: SessionTrace) -> None:
        self.trace: SessionTrace | None = trace
        self.number = trace.number
        self.key: SessionKey = ("t", f"session-{trace.number}")
        self.history = 0
        self.next_turn = 0
        self.home = ""


class Simulation:
    def __init__(self, traces: Iterator[SessionTrace], policy: Policy, model: WorkerModel, start: int) -> None:
        self.outcome = Outcome(policy.name)
        self._policy = policy
        self._model = model
        self._traces = traces
        self._workers: dict[str, SimWorker] = {}
        self._parked: list[Turn] = []
        self._events: list[tuple[float, int, int, Any, Any]] = []
        self._order = count()
        self._names = count()
        self._sessions: dict[SessionKey, Session] = {}
        self._open = 0
        self._more = True
        self._now = 0.0
        for _ in range(start):
            self._spawn(ready_in=0.0)
        self._at(0.0, TICK)
        self._next_session()

    def run(self) -> Outcome:
        """Until the last turn of the last session has ended."""
        while self._events:
            self._now, _, kind, first, second = heapq.heappop(self._events)
            if kind == TURN:
                self._turn(first)
            elif kind == END:
                self._end(first, second)
            elif kind == BEGIN:
                self._sessions[first.key] = first
                self._open += 1
                self._turn(first)
                self._next_session()
            elif kind == CLOSE:
                self._close(first)
            elif kind == READY:
                self._ready(first)
            elif self._open or self._more:
                self._tick()
        self.outcome.gpu_s += sum(self._now - worker.born_at for worker in self._workers.values())
        return self.outcome

    # -- sessions --------------------------------------------------------------------------------------------------

    def _next_session(self) -> None:
        trace = next(self._traces, None)
        self._more = trace is not None
        if trace is not None:
            self._at(trace.starts_at, BEGIN, Session(trace))

    def _turn(self, session: Session) -> None:
        trace, at = session.trace, session.next_turn
        assert trace is not None
        session.next_turn += 1
        turn = Turn(session, session.history + trace.inputs[at], trace.outputs[at], self._now)
        self.outcome.turns += 1
        self._send(turn)

    def _send(self, turn: Turn) -> None:
        full = None
        for _ in range(TRIES):
            name = self._policy.place(turn.session.key, turn, full)
            if name is None and full is None:
                self._parked.append(turn)
                return
            if name is None:
                break
            worker = self._workers[name]
            if worker.accept(turn):
                self._arrive(turn, worker)
                return
            full = name
        self.outcome.shed += 1
        self._think(turn.session)

    def _arrive(self, turn: Turn, worker: SimWorker) -> None:
        session = turn.session
        if session.home and session.home != worker.name:
            self.outcome.moves += 1
        session.home = worker.name
        self._pump(worker)

    def _pump(self, worker: SimWorker) -> None:
        while (started := worker.start_next(self._now)) is not None:
            turn, begins_at, ends_at = started
            self.outcome.queue_s.append(begins_at - turn.arrived_at)
            self.outcome.prompt_tokens += turn.prompt
            self.outcome.cached_tokens += turn.cached
            self._at(ends_at, END, turn, worker)

    def _end(self, turn: Turn, worker: SimWorker) -> None:
        worker.finish(turn)
        turn.session.history = turn.prompt + turn.output
        self._think(turn.session)
        self._pump(worker)
        if worker.draining and not worker.load:
            self._gone(worker)

    def _think(self, session: Session) -> None:
        trace = session.trace
        if trace is not None and session.next_turn < len(trace.thinks):
            self._at(self._now + trace.thinks[session.next_turn], TURN, session)
        else:
            session.trace = None
            self._open -= 1
            self._at(self._now + IDLE_S, CLOSE, session)

    def _close(self, session: Session) -> None:
        self._policy.close(session.key)
        del self._sessions[session.key]
        worker = self._workers.get(session.home)
        if worker is not None:
            worker.drop(session.number)

    # -- workers ---------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        orders = self._policy.tick(self._workers, len(self._parked), self._now)
        for key, source in orders.moved:
            self._workers[source].drop(self._sessions[key].number)
        for _ in range(orders.spawn):
            self._spawn(self._model.start_s)
        for name in orders.drain:
            worker = self._workers[name]
            worker.draining = True
            if not worker.load:
                self._gone(worker)
        for name in orders.kill:
            self._gone(self._workers[name])
        self.outcome.changes += bool(orders.spawn) + bool(orders.drain or orders.kill)
        self.outcome.most_workers = max(self.outcome.most_workers, len(self._workers))
        self._at(self._now + TICK_S, TICK)

    def _spawn(self, ready_in: float) -> None:
        worker = SimWorker(f"w{next(self._names):05d}", self._model, self._now)
        self._workers[worker.name] = worker
        self._policy.started(worker, self._now)
        self._at(self._now + ready_in, READY, worker.name)

    def _ready(self, name: str) -> None:
        if name not in self._workers or self._workers[name].draining:
            return
        self._policy.ready(name, self._now)
        parked, self._parked = self._parked, []
        for turn in parked:
            self._send(turn)

    def _gone(self, worker: SimWorker) -> None:
        del self._workers[worker.name]
        self.outcome.gpu_s += self._now - worker.born_at
        self._policy.gone(worker.name, self._now)

    def _at(self, when: float, kind: int, first: Any = None, second: Any = None) -> None:
        heapq.heappush(self._events, (when, next(self._order), kind, first, second))
