"""Replacing the workers of an earlier release, a few at a time: pure (rules T5, T6).

It remembers nothing: whatever pool looks, in the middle of a rollout too, sees from the workers how far it has got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cluster.actions import Action, Drain, Keep, Kill, Spawn
from cluster.membership import Worker, WorkerState
from configs import RolloutConfig

_SERVING = (WorkerState.READY, WorkerState.SUSPECT)


def replace_stale(
    desired: int,
    workers: Sequence[Worker],
    cost: Callable[[Worker], tuple[int, ...]],
    settings: RolloutConfig,
    *,
    may_spawn: bool,
    stopped: bool,
    pins: bool,
) -> list[Action]:
    """The next steps while any worker is stale: new ones are started first, and one of before is drained for each that
    is ready beyond the number that must be; the cheapest first, so that most sessions move once.

    `stopped`: starts have failed too often; nothing is started or ended but for the number of workers. `pins`: sessions
    go on with their own weights only, so that the last worker that has these is kept for them.
    """
    wanted = [one for one in workers if one.kept_at is None and one.state in (WorkerState.STARTING, *_SERVING)]
    fresh = [one for one in wanted if not one.stale]
    stale = [one for one in wanted if one.stale and one.state in _SERVING]
    going = sum(one.stale and one.state is WorkerState.DRAINING for one in workers)
    actions: list[Action] = [Kill(one.worker_id) for one in wanted if one.stale and one.state is WorkerState.STARTING]
    missing = desired - len(stale) - len(fresh)
    more = min(desired - len(fresh), missing + settings.max_surge - going)
    if stopped:
        more = min(more, missing)
    if may_spawn:
        actions += [Spawn()] * more
    least = desired if stopped else desired - settings.max_unavailable
    ready = [one for one in (*fresh, *stale) if one.state is WorkerState.READY]
    may_go = sorted((one for one in ready if one.stale), key=lambda one: (cost(one), one.worker_id))
    going_now = may_go[: max(0, len(ready) - least)]
    return actions + _farewells(going_now, workers, pins=pins)


def _farewells(going: Sequence[Worker], workers: Iterable[Worker], *, pins: bool) -> list[Action]:
    """A drain for each; with `pins` not for the last that has its weights."""
    left = {one.worker_id: one for one in workers if one.state in _SERVING}
    farewells: list[Action] = []
    for worker in going:
        del left[worker.worker_id]
        last = not any(other.weights == worker.weights for other in left.values())
        farewells.append(Keep(worker.worker_id) if pins and last else Drain(worker.worker_id))
        if isinstance(farewells[-1], Keep):
            left[worker.worker_id] = worker
    return farewells


def let_go(workers: Sequence[Worker], sessions: Callable[[str], int], now: float, grace_s: float) -> list[Action]:
    """Drains of kept workers that nobody needs any more: no session is left there, another worker has these weights, or
    the grace is over. `sessions(worker_id)`: how many it owns."""
    others = {one.weights for one in workers if one.kept_at is None and one.state is WorkerState.READY}
    return [
        Drain(one.worker_id)
        for one in workers
        if one.kept_at is not None
        and one.state in _SERVING
        and (not sessions(one.worker_id) or one.weights in others or now - one.kept_at > grace_s)
    ]
