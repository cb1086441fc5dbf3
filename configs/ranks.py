"""What cannot work among the settings of tensor parallel workers."""

from __future__ import annotations

from collections.abc import Iterator

from configs.workers import WorkerConfig

PLACEMENTS = {"strict_pack": "STRICT_PACK", "pack": "PACK"}
"""What `workers.rank_placement` may say, and what Ray calls it."""


def complaints(workers: WorkerConfig) -> Iterator[str]:
    """One line for each setting that cannot work; each begins with the setting's path."""
    size = workers.tensor_parallel
    if size < 1:
        yield f"workers.tensor_parallel: {size} is too small; it must be at least 1"
    if workers.rank_placement not in PLACEMENTS:
        yield f"workers.rank_placement: {workers.rank_placement!r}; it must be {' or '.join(PLACEMENTS)}"
    if size > 1 and workers.runner not in ("auto", "torch"):
        yield f"workers.tensor_parallel: {size}; the {workers.runner} runner has nothing to split, it must be 1"
    if size > 1 and workers.num_gpus not in (0, 1):
        yield f"workers.num_gpus: {workers.num_gpus}; each rank of a worker computes on one GPU, it must be 0 or 1"
