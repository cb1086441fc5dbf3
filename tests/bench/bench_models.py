"""Models that are measured: as `remora serve` takes them, and by name some that only benchmarks use."""

from __future__ import annotations

from pathlib import Path

from actors.model.cache import cache_root
from actors.model.errors import ModelError
from actors.model.source import resolve, served_name
from tests.bench.figures import BenchError
from tests.bench.peer_servers import Setting


def setting_of(model: str, threads: int, logs: Path, quantization: str = "") -> Setting:
    """Fetches and converts the model as need be. Raises BenchError."""
    try:
        folder = resolve(model).path
    except ModelError as error:
        raise BenchError(str(error)) from error
    return Setting(
        folder=folder,
        gguf=cache_root("") / "bench" / f"{folder.name}.BF16.gguf",
        model=served_name(model),
        threads=threads,
        logs=logs,
        quantization=quantization,
    )
