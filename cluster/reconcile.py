"""What to do so that what is becomes what should be: pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cluster.membership import Worker, WorkerState

MAX_BACKOFF_S = 30.0


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start one more worker."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Give this worker no new sessions, and end it when it has nothing to do."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End this worker now."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take over a worker that runs but is not in the table."""

    worker_id: str


Action = Spawn | Drain | Kill | Adopt

_WANTED = (WorkerState.STARTING, WorkerState.READY, WorkerState.SUSPECT)


def reconcile(
    desired: int,
    workers: Iterable[Worker],
    living: Iterable[str],
    cost: Callable[[Worker], tuple[int, ...]],
    *,
    may_spawn: bool,
) -> list[Action]:
    """Actions that lead from the table (`workers`) and the actors that run (`living`) to `desired` workers.

    `cost(worker)`: what ending this worker would cost; the cheapest go first (rule P6), those that have not started
    before all others. `may_spawn` False: not now, the last one failed a moment ago.
    """
    table = {worker.worker_id: worker for worker in workers}
    living = set(living)
    actions: list[Action] = [Adopt(worker_id) for worker_id in sorted(living - table.keys())]
    actions += [Kill(worker_id) for worker_id in sorted(living & table.keys()) if not table[worker_id].alive]
    wanted = [worker for worker in table.values() if worker.state in _WANTED]
    missing = desired - len(wanted) - sum(isinstance(action, Adopt) for action in actions)
    if missing > 0 and may_spawn:
        actions += [Spawn()] * missing
    excess = max(0, len(wanted) - desired)  # Without the adopted: nobody knows yet what they cost.
    for worker in sorted(wanted, key=lambda worker: _order(worker, cost))[:excess]:
        starting = worker.state is WorkerState.STARTING
        actions.append(Kill(worker.worker_id) if starting else Drain(worker.worker_id))
    return actions


def _order(worker: Worker, cost: Callable[[Worker], tuple[int, ...]]) -> tuple[bool, tuple[int, ...], str]:
    return worker.state is not WorkerState.STARTING, cost(worker), worker.worker_id


def backoff_s(failures: int) -> float:
    """How long to wait before the next start when the last `failures` ones failed."""
    return min(MAX_BACKOFF_S, 2.0 ** (failures - 1)) if failures else 0.0
