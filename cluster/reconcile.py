"""What to do so that what is becomes what should be: pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cluster.actions import Action, Adopt, Drain, Kill, Spawn
from cluster.membership import Worker, WorkerState
from cluster.rollout import replace_stale
from configs import RolloutConfig

MAX_BACKOFF_S = 30.0


_WANTED = (WorkerState.STARTING, WorkerState.READY, WorkerState.SUSPECT)


def reconcile(
    desired: int,
    workers: Iterable[Worker],
    living: Iterable[str],
    cost: Callable[[Worker], tuple[int, ...]],
    *,
    may_spawn: bool,
    rollout: RolloutConfig | None = None,
    stopped: bool = False,
    pins: bool = False,
) -> list[Action]:
    """Actions that lead from the table (`workers`) and the actors that run (`living`) to `desired` workers, all of this
    release; those that are kept for pinned sessions do not count.

    `cost(worker)`: what ending this worker would cost; the cheapest go first (rule P6), those that have not started
    before all others. `may_spawn` False: not now, the last one failed a moment ago. The others: see `replace_stale`.
    """
    table = {worker.worker_id: worker for worker in workers}
    living = set(living)
    actions: list[Action] = [Adopt(worker_id) for worker_id in sorted(living - table.keys())]
    actions += [Kill(worker_id) for worker_id in sorted(living & table.keys()) if not table[worker_id].alive]
    adopting = any(isinstance(action, Adopt) for action in actions)
    if any(worker.alive and worker.stale and worker.kept_at is None for worker in table.values()):
        return actions + replace_stale(
            desired,
            list(table.values()),
            cost,
            rollout or RolloutConfig(),
            may_spawn=may_spawn and not adopting,
            stopped=stopped,
            pins=pins,
        )
    wanted = [worker for worker in table.values() if worker.state in _WANTED and worker.kept_at is None]
    missing = desired - len(wanted) - sum(isinstance(action, Adopt) for action in actions)
    if missing > 0 and may_spawn:
        actions += [Spawn()] * missing
    if any(worker.adopted and worker.state is WorkerState.STARTING for worker in wanted):
        return actions  # Nobody knows yet what it is, and what it would cost.
    excess = max(0, len(wanted) - desired)  # Without the adopted, likewise.
    for worker in sorted(wanted, key=lambda worker: _order(worker, cost))[:excess]:
        starting = worker.state is WorkerState.STARTING
        actions.append(Kill(worker.worker_id) if starting else Drain(worker.worker_id))
    return actions


def _order(worker: Worker, cost: Callable[[Worker], tuple[int, ...]]) -> tuple[bool, tuple[int, ...], str]:
    return worker.state is not WorkerState.STARTING, cost(worker), worker.worker_id


def backoff_s(failures: int) -> float:
    """How long to wait before the next start when the last `failures` ones failed."""
    return min(MAX_BACKOFF_S, 2.0 ** (failures - 1)) if failures else 0.0
