"""Room for all ranks of a tensor parallel worker, which Ray gives at once or not at all: placement groups.

They are detached, as the workers are, and are not given back by themselves when a worker dies: whoever finds it dead
does that. A group is known by its name, which says whose it is.
"""

from __future__ import annotations

from binascii import unhexlify
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from configs import WorkerConfig
from configs.ranks import PLACEMENTS

_LEAST_CPU = 0.001
"""A group cannot ask for nothing."""
_REMOVED = "REMOVED"


def reserve(namespace: str, worker_id: str, workers: WorkerConfig) -> PlacementGroupSchedulingStrategy:
    """Ask for the room; where the worker itself is to run. Returns before Ray has found it."""
    bundle = {"CPU": max(workers.num_cpus, _LEAST_CPU)} | ({"GPU": workers.num_gpus} if workers.num_gpus else {})
    group = ray.util.placement_group(
        [dict(bundle) for _ in range(workers.tensor_parallel)],
        strategy=PLACEMENTS[workers.rank_placement],
        name=_prefix(namespace) + worker_id,
        lifetime="detached",
    )
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)


def reserved(namespace: str) -> set[str]:
    """Ids of the workers that room is kept for."""
    return {group["name"].removeprefix(_prefix(namespace)) for group in _groups(namespace)}


def release(namespace: str, worker_id: str | None = None) -> None:
    """Give a worker's room back, or, without an id, that of all; whatever still runs there is killed."""
    for group in _groups(namespace):
        if worker_id is None or group["name"] == _prefix(namespace) + worker_id:
            ray.util.remove_placement_group(_of_id(group["placement_group_id"]))


def _prefix(namespace: str) -> str:
    return f"remora:{namespace}/"


def _groups(namespace: str) -> list[dict[str, Any]]:
    table: dict[str, dict[str, Any]] = placement_group_table()
    return [
        group for group in table.values() if group["name"].startswith(_prefix(namespace)) and group["state"] != _REMOVED
    ]


def _of_id(hex_id: str) -> PlacementGroup:
    from ray._raylet import PlacementGroupID

    return PlacementGroup(PlacementGroupID(unhexlify(hex_id)))
