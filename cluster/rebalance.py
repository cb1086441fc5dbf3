"""Which sessions should move off a hot worker between turns (rule P3): pure, with time as an argument.

Stickiness is worth a prefill, so that a worker must have been hot for a while before anything moves, it gets time to
cool down before more does, and a session that has moved stays where it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from cluster.placement import SessionKey
from configs import RebalanceConfig


@dataclass(frozen=True, slots=True)
class Move:
    """Give this session to `target`, if it is idle."""

    key: SessionKey
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Heat:
    """What must be remembered between looks. `hot_since`: by worker. `settled`: sessions that have moved, and from
    when on they may again; oldest first."""

    hot_since: Mapping[str, float] = field(default_factory=dict)
    settled: Mapping[SessionKey, float] = field(default_factory=dict)


def rebalance(
    heat: Heat,
    requests: Mapping[str, int],
    sessions: Callable[[str], int],
    keys: Callable[[str], Iterable[SessionKey]],
    settings: RebalanceConfig,
    now: float,
) -> tuple[Heat, list[Move]]:
    """Sessions to move, and what to remember.

    `requests`: what runs and waits on each ready worker. `sessions(worker_id)`: how many it has; `keys(worker_id)`:
    those, as far as they are asked for. Takes time for the workers and for what moves, not for all sessions.
    """
    settled = _still(heat.settled, now)
    mean = sum(requests.values()) / len(requests) if requests else 0.0
    hot = {worker_id for worker_id, count in requests.items() if _is_hot(count, mean, settings)}
    hot_since = {worker_id: heat.hot_since.get(worker_id, now) for worker_id in sorted(hot)}
    room = {worker_id: mean - count for worker_id, count in requests.items() if count < mean}
    moves: list[Move] = []
    for worker_id, since in hot_since.items():
        if now - since < settings.delay_s:
            continue
        share = requests[worker_id] / max(1, sessions(worker_id))
        wanted = min(settings.max_moves, math.ceil((requests[worker_id] - mean) / max(share, 1e-9)))
        moved = _spread(worker_id, wanted, share, room, (key for key in keys(worker_id) if key not in settled))
        moves += moved
        if moved:
            hot_since[worker_id] = now + settings.pause_s - settings.delay_s
            settled.update((move.key, now + settings.settle_s) for move in moved)
    return Heat(hot_since, settled), moves


def _is_hot(count: int, mean: float, settings: RebalanceConfig) -> bool:
    return count >= settings.min_requests and count > settings.hot * mean


def _spread(source: str, wanted: int, share: float, room: dict[str, float], keys: Iterable[SessionKey]) -> list[Move]:
    """The first `wanted` of `keys`, each to the worker with most room, while that keeps below the mean. `room` is
    what is left."""
    moves: list[Move] = []
    for key in keys:
        target = max(room, key=lambda worker_id: (room[worker_id], worker_id), default=None)
        if len(moves) >= wanted or target is None or room[target] < share:
            break
        room[target] -= share
        moves.append(Move(key, source, target))
    return moves


def _still(settled: Mapping[SessionKey, float], now: float) -> dict[SessionKey, float]:
    return {key: until for key, until in settled.items() if until > now}
