"""Settings of quantised weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from configs import ConfigError, RemoraConfig, load
from configs.digest import worker_digest


@pytest.mark.parametrize("runner", ["auto", "cpu"])
def test_int8_is_the_cpu_runners(runner: str) -> None:
    config = load(None, {"model.quantization": "int8", "workers.runner": runner})
    assert config.model.quantization == "int8"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"model.quantization": "fp8"}, r"^model.quantization: 'fp8'; it must be 'int8' or empty$"),
        (
            {"workers.num_gpus": 1},
            r"^model.quantization: 'int8'; it is computed on CPUs alone, and workers.num_gpus is 1$",
        ),
        ({"workers.runner": "torch"}, r"^model.quantization: 'int8'; .* workers.runner must be auto or cpu$"),
        ({"workers.runner": "toy"}, r"^model.quantization: 'int8'; .* workers.runner must be auto or cpu$"),
        ({"workers.tensor_parallel": 2}, r"^model.quantization: 'int8'; .* workers.tensor_parallel must be 1$"),
    ],
)
def test_what_cannot_work_is_refused_with_its_path(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(None, {"model.quantization": "int8", **settings})


def test_workers_of_another_quantization_are_replaced() -> None:
    """T5: it is one of the settings that a worker lives by."""
    config = RemoraConfig()
    other = replace(config, model=replace(config.model, quantization="int8"))
    assert worker_digest(other) != worker_digest(config)
