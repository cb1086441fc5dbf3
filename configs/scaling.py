"""How many workers there are, and which sessions move between them; and what cannot work among these settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AutoscaleConfig:
    """How many workers there should be, by what they have to do. Off: `workers.count` of them, always.

    `min_workers`, `max_workers`: never fewer, never more. 0 for the least: after `idle_s` without any request the last
    worker goes too; the next request starts one, and is held until that is ready.
    `requests_per_worker`: requests running and waiting that a worker should have; 0 = three quarters of
    `engine.max_running`. `queue_s`: how long a request may queue before more workers are wanted.
    `tokens_per_s`: output tokens per second that a worker should make; 0 = not looked at.
    `kv_share`: how much of its KV cache a worker's requests should need. `idle_kv_share`: how much of the KV of idle
    sessions counts with that: it can always be had back (rule S10), at the price of a prefill.
    `up_delay_s`, `down_delay_s`: for how long more, or fewer, must have been wanted before it is done.
    `margin`: fewer workers are wanted only where these would keep so much below every target.
    """

    enabled: bool = False
    min_workers: int = 1
    max_workers: int = 8
    requests_per_worker: int = 0
    queue_s: float = 2.0
    tokens_per_s: float = 0.0
    kv_share: float = 0.8
    idle_kv_share: float = 0.0
    up_delay_s: float = 5.0
    down_delay_s: float = 120.0
    idle_s: float = 600.0
    margin: float = 0.2


@dataclass(frozen=True, slots=True)
class RebalanceConfig:
    """Moving idle sessions off a hot worker between turns (rule P3). Off: a session stays while its worker lives.

    A worker is hot while it holds more than `hot` times the mean of all in requests, and at least `min_requests`, for
    `delay_s` on end; it gets rid of sessions until it would be at the mean. `max_moves`: sessions moved in one go, and
    `pause_s` between two goes off one worker. A session that moved stays for `settle_s`.
    """

    enabled: bool = False
    hot: float = 1.5
    min_requests: int = 8
    delay_s: float = 10.0
    max_moves: int = 32
    pause_s: float = 10.0
    settle_s: float = 300.0


def complaints(autoscale: AutoscaleConfig, rebalance: RebalanceConfig, workers: int = 1) -> Iterator[str]:
    """One line for each setting that cannot work; each begins with the setting's path. `workers`: how many to begin
    with."""
    least, most = autoscale.min_workers, autoscale.max_workers
    if not 0 <= least <= most or not most:
        yield (
            f"autoscale: min_workers {least}, max_workers {most}; "
            "it must be 0 <= min_workers <= max_workers, and max_workers above 0"
        )
    if autoscale.enabled and workers > most:
        yield f"autoscale.max_workers: {most} is less than workers.count, the {workers} to begin with"
    for name in ("kv_share", "queue_s"):
        if getattr(autoscale, name) <= 0:
            yield f"autoscale.{name}: {getattr(autoscale, name)}; it must be above 0"
    for name in ("requests_per_worker", "tokens_per_s", "idle_kv_share", "up_delay_s", "down_delay_s", "idle_s"):
        if getattr(autoscale, name) < 0:
            yield f"autoscale.{name}: {getattr(autoscale, name)}; it must be 0 or more"
    if not 0 <= autoscale.margin < 1:
        yield f"autoscale.margin: {autoscale.margin}; it must be at least 0 and below 1"
    if rebalance.hot <= 1:
        yield f"rebalance.hot: {rebalance.hot}; it must be above 1"
    for name in ("min_requests", "max_moves"):
        if getattr(rebalance, name) < 1:
            yield f"rebalance.{name}: {getattr(rebalance, name)}; it must be at least 1"
    for name in ("delay_s", "pause_s", "settle_s"):
        if getattr(rebalance, name) < 0:
            yield f"rebalance.{name}: {getattr(rebalance, name)}; it must be 0 or more"
