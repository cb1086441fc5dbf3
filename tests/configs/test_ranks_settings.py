"""Settings of tensor parallel workers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.worker.build import compute_threads
from configs import ConfigError, RemoraConfig, WorkerConfig, load
from configs.digest import worker_digest


def test_a_worker_is_one_process_unless_told_otherwise() -> None:
    assert (WorkerConfig().tensor_parallel, WorkerConfig().rank_placement) == (1, "strict_pack")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"tensor_parallel": 0}, r"^workers.tensor_parallel: 0 is too small"),
        ({"tensor_parallel": 2, "runner": "toy"}, r"^workers.tensor_parallel: 2; the toy runner has nothing to split"),
        ({"tensor_parallel": 2, "num_gpus": 0.5}, r"^workers.num_gpus: 0.5; each rank .* must be 0 or 1"),
        ({"tensor_parallel": 2, "num_gpus": 2}, r"^workers.num_gpus: 2.0; each rank .* must be 0 or 1"),
        ({"rank_placement": "spread"}, r"^workers.rank_placement: 'spread'; it must be strict_pack or pack"),
    ],
)
def test_what_cannot_work_is_refused_with_its_path(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(None, {f"workers.{name}": value for name, value in settings.items()})


def test_a_worker_of_one_process_may_share_a_gpu() -> None:
    assert load(None, {"workers.num_gpus": 0.5}).workers.num_gpus == 0.5


@pytest.mark.parametrize("changed", [{"tensor_parallel": 2}, {"rank_placement": "pack"}])
def test_workers_of_another_number_of_ranks_are_replaced(changed: dict[str, object]) -> None:
    """T5: it is one of the settings that a worker lives by."""
    config = RemoraConfig()
    other = replace(config, workers=replace(config.workers, **changed))  # type: ignore[arg-type]
    assert worker_digest(other) != worker_digest(config)


def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)))
    assert compute_threads(load(None, {"workers.count": 2, "workers.tensor_parallel": 4})) == 2
    assert compute_threads(load(None, {"workers.tensor_parallel": 4, "workers.threads": 3})) == 3
