"""What cannot work among the settings of a model with quantised weights."""

from __future__ import annotations

from collections.abc import Iterator

from configs.workers import ModelConfig, WorkerConfig

QUANTIZATIONS = ("", "int8")


def complaints(model: ModelConfig, workers: WorkerConfig) -> Iterator[str]:
    """One line for each setting that cannot work; each begins with the setting's path."""
    asked = f"model.quantization: {model.quantization!r}"
    if model.quantization not in QUANTIZATIONS:
        yield f"{asked}; it must be 'int8' or empty"
    if not model.quantization:
        return
    if workers.num_gpus:
        yield f"{asked}; it is computed on CPUs alone, and workers.num_gpus is {workers.num_gpus:g}"
    if workers.runner in ("torch", "toy"):
        yield f"{asked}; the cpu runner computes it: workers.runner must be auto or cpu"
    if workers.tensor_parallel > 1:
        yield f"{asked}; a model that is split over ranks is computed by torch: workers.tensor_parallel must be 1"
