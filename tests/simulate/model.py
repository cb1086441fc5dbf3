"""A worker as the simulation has it: a batch, a queue, a prefill rate, a decode rate, and a KV cache with idle sessions
in order of use. Rates are those of a mid-size model on one GPU; only their proportions matter to a policy."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

PAGE = 16
RATE_S = 10.0
"""Time over which a worker's token rate is averaged."""


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """`batch`: requests at once. `waiting`: most in the queue; more are shed (429). Tokens per second of prefill, one
    prompt after the other. A decode step takes `step_s` plus `step_per_request_s` for each request in the batch."""

    batch: int = 32
    waiting: int = 64
    kv_tokens: int = 400_000
    prefill_tokens_per_s: float = 16_000.0
    step_s: float = 0.016
    step_per_request_s: float = 0.0004
    start_s: float = 60.0


class Turn:
    """One turn on its way. `session` is the simulation's."""

    __slots__ = ("arrived_at", "cached", "output", "prompt", "session")

    def __init__(self, session: Any, prompt: int, output: int, arrived_at: float) -> None:
        self.session = session
        self.prompt = prompt
        self.output = output
        self.arrived_at = arrived_at
        self.cached = 0


class SimWorker:
    """`known`: numbers of the open sessions that have been here. `idle`: tokens of idle sessions' KV by session number,
    least recently used first."""

    def __init__(self, name: str, model: WorkerModel, born_at: float) -> None:
        self.name = name
        self.model = model
        self.born_at = born_at
        self.queue: deque[Turn] = deque()
        self.running = 0
        self.live_tokens = 0
        self.idle: OrderedDict[int, int] = OrderedDict()
        self.idle_tokens = 0
        self.known: set[int] = set()
        self.taken = 0
        self.received = 0
        self.generated = 0
        self.prefill_free_at = 0.0
        self.draining = False
        self._rate, self._rated_at, self._rated = 0.0, born_at, 0

    @property
    def load(self) -> int:
        return self.running + len(self.queue)

    def accept(self, turn: Turn) -> bool:
        """Into the queue. False: the queue is full, and the turn is shed."""
        if len(self.queue) >= self.model.waiting:
            return False
        self.received += 1
        if turn.session.number not in self.known:
            self.known.add(turn.session.number)
            self.taken += 1
        self.queue.append(turn)
        return True

    def start_next(self, now: float) -> tuple[Turn, float, float] | None:
        """The first turn of the queue, when its prefill begins and when it ends; None when it has to wait."""
        if not self.queue or self.running >= self.model.batch:
            return None
        turn = self.queue[0]
        cached = self.idle.get(turn.session.number, 0)
        need = turn.prompt + turn.output
        if self.running and self.live_tokens + need > self.model.kv_tokens:
            return None
        self.queue.popleft()
        if cached:
            del self.idle[turn.session.number]
            self.idle_tokens -= cached
        turn.cached = min(cached, turn.prompt - 1)
        self.running += 1
        self.live_tokens += need
        while self.idle and self.live_tokens + self.idle_tokens > self.model.kv_tokens:
            self.idle_tokens -= self.idle.popitem(last=False)[1]
        begins_at = max(now, self.prefill_free_at)
        self.prefill_free_at = begins_at + (turn.prompt - turn.cached) / self.model.prefill_tokens_per_s
        step = self.model.step_s + self.model.step_per_request_s * self.running
        return turn, begins_at, self.prefill_free_at + turn.output * step

    def finish(self, turn: Turn) -> None:
        """Its KV stays with its session."""
        self.running -= 1
        tokens = turn.prompt + turn.output
        self.live_tokens -= tokens
        self.generated += turn.output
        self.idle[turn.session.number] = tokens
        self.idle_tokens += tokens

    def drop(self, number: int) -> None:
        """A session has left, or is closed."""
        self.known.discard(number)
        self.idle_tokens -= self.idle.pop(number, 0)

    def stats(self, now: float) -> dict[str, Any]:
        """A heartbeat, as a real worker answers it."""
        if now > self._rated_at:
            weight = min(1.0, (now - self._rated_at) / RATE_S)
            self._rate += weight * ((self.generated - self._rated) / (now - self._rated_at) - self._rate)
            self._rated_at, self._rated = now, self.generated
        return {
            "pages": {"session_held": self.idle_tokens // PAGE, "request_owned": self.live_tokens // PAGE},
            "page_size": PAGE,
            "kv_tokens": self.model.kv_tokens,
            "running": self.running,
            "waiting": len(self.queue),
            "oldest_wait_s": now - self.queue[0].arrived_at if self.queue else 0.0,
            "requests_received": self.received,
            "max_running": self.model.batch,
            "turns": self.load,
            "sessions": len(self.known),
            "sessions_taken": self.taken,
            "resident_sessions": len(self.idle) + self.running,
            "rates": {"output_tokens_per_s": self._rate},
        }
