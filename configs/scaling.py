"""What cannot work among the settings of scaling and moving."""

from __future__ import annotations

from collections.abc import Iterator

from configs.schema import AutoscaleConfig, RebalanceConfig


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
