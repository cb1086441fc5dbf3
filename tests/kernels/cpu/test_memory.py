"""What a step takes beside the cache, and what is left of it when there is not enough."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.cpu import memory
from kernels.cpu.library import Library, load
from kernels.cpu.memory import Fill, zeros
from tests.kernels.cpu.builds import unusable
from tests.kernels.cpu.rig import SHAPE, Bench, Model

TOO_LARGE = """
import resource, sys
import torch
from kernels.cpu.library import load
from tests.kernels.cpu.rig import SHAPE, Bench, Model

dtype, variant = sys.argv[1:]
model = Model.random(SHAPE, getattr(torch, dtype))
bench = Bench(model, load(dtype, variant), threads=1)
sequence = bench.sequence(20)
bench.step((sequence, 10))
rows = 1_000_000
table, nothing = torch.ones(rows, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
batch = (torch.zeros(rows, dtype=torch.int64), [1] * rows, [1] * rows, table, nothing)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 200 * 2**20, resource.getrlimit(resource.RLIMIT_AS)[1]))
try:
    bench.decoder.step(*batch)
except ValueError as error:
    print(error)
print(bool(bench.step((sequence, 10))[0].isfinite().all()))
"""


def test_a_step_that_there_is_no_memory_for_leaves_the_next_one_well(library: Library) -> None:
    """N52: it fails with a reason; the steps of its requests one by one do not crash."""
    done = subprocess.run(
        [sys.executable, "-c", TOO_LARGE, library.variant.dtype, library.variant.name],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert (done.returncode, done.stdout.split("\n")[:2]) == (0, ["no memory for a step of this size", "True"])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_cache_is_filled_after_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Address space at first; then all of its memory, unless its owner stops that, or is gone."""
    monkeypatch.setattr(memory, "_FILL_AFTER_S", 0.0)
    size = 256 * 2**20
    before = resident_bytes()
    tensor = zeros((size // 4,), torch.float32)
    assert resident_bytes() - before < size // 4
    fill = Fill(tensor)
    fill._thread.join(60)
    assert resident_bytes() - before > size * 3 // 4
    assert not tensor[:: 2**16].any()
    monkeypatch.setattr(memory, "_FILL_BYTES", 4096)
    other = zeros((size // 4,), torch.float32)
    Fill(other).stop()
    gone = Fill(other)
    del other
    gone._thread.join(60)
    assert not gone._thread.is_alive()
    assert resident_bytes() - before < size * 2


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def test_a_long_prompt_on_many_cores_does_not_take_gigabytes() -> None:
    """What split tiles leave for each other is bounded: here it would be 430 MiB."""
    if why := unusable("float32"):
        pytest.skip(why)
    library = load("float32")
    assert isinstance(library, Library)
    shape = replace(SHAPE, layers=1, heads=16, kv_heads=16, head_dim=32, num_pages=530)
    bench = Bench(Model.random(shape, torch.float32), library, threads=64)
    sequence = bench.sequence(8192)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError as error:
        pytest.skip(f"this system does not forget a process's peak: {error}")
    before = peak_bytes()
    (last,) = bench.step((sequence, 8192), wanted="last")
    taken = peak_bytes() - before
    bench.close()
    assert last.isfinite().all()
    assert taken < 330 * 2**20
