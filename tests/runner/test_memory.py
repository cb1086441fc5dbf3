"""A KV cache that does not fit is refused before it is allocated, not found out by the kernel's OOM killer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.model.errors import ModelUnusable
from actors.runner.torch import local_model
from actors.runner.torch.memory import available_bytes
from tests.runner import tiny

GIB = 2**30
MACHINE = {"proc/meminfo": f"MemTotal: {16 * 2**20} kB\nMemAvailable: {8 * 2**20} kB\n"}
VERSION_2 = {
    "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
    "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
    "sys/fs/cgroup/memory.stat": f"anon {GIB}\ninactive_file {2 * GIB}\n",
}
VERSION_1 = {
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
    "sys/fs/cgroup/memory/memory.stat": f"inactive_file 0\ntotal_inactive_file {2 * GIB}\n",
}
UNLIMITED_2 = {**VERSION_2, "sys/fs/cgroup/memory.max": "max\n"}
UNLIMITED_1 = {**VERSION_1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}
OVER_ITS_LIMIT = {**VERSION_2, "sys/fs/cgroup/memory.current": f"{9 * GIB}\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (MACHINE, 8 * GIB),
        ({**MACHINE, **VERSION_2}, 3 * GIB),
        ({**MACHINE, **VERSION_1}, 3 * GIB),
        ({**MACHINE, **UNLIMITED_2}, 8 * GIB),
        ({**MACHINE, **UNLIMITED_1}, 8 * GIB),
        ({**MACHINE, **OVER_ITS_LIMIT}, 0),
        (VERSION_2, 3 * GIB),
        ({}, None),
        ({"proc/meminfo": "MemTotal: 5 kB\nMemAvailable: some\n\n"}, None),
    ],
)
def test_the_smaller_of_machine_and_container_counts(
    tmp_path: Path, files: dict[str, str], expected: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path) == expected


def test_a_cache_larger_than_what_is_left_is_refused_and_one_that_just_fits_is_not(
    saved: Callable[[str], tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = saved("llama")
    runner = tiny.runner(folder)
    assert runner._model is not None
    size = runner._model.kv.nbytes
    runner.close()
    monkeypatch.setattr(local_model, "available_bytes", lambda: size)
    tiny.runner(folder).close()
    monkeypatch.setattr(local_model, "available_bytes", lambda: size - 1)
    with pytest.raises(ModelUnusable, match=r"no memory for a KV cache of 4128 tokens .* lower engine\.kv_tokens"):
        tiny.runner(folder)


def test_where_nothing_is_known_the_allocation_itself_decides(
    saved: Callable[[str], tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_model, "available_bytes", lambda: None)
    tiny.runner(saved("llama")[0]).close()
    with pytest.raises(ModelUnusable, match="no memory for a KV cache"):
        tiny.runner(saved("llama")[0], kv_tokens=2**50)
