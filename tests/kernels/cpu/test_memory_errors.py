"""The operator reads and writes nothing but what is its own: its steps and draws under AddressSanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu.build import SOURCES, NoCompiler, find_compiler
from kernels.cpu.variants import VARIANTS, cpu_flags

FLAGS = (
    *("-std=c++20", "-O1", "-g", "-fPIC", "-shared", "-ffp-contract=off", "-pthread", "-w"),
    *("-fsanitize=address", "-D_GLIBCXX_ASSERTIONS"),
)
STEPS = """
import sys
from array import array
from dataclasses import replace
from pathlib import Path
import torch
from kernels.cpu.library import DRAW, Library
from kernels.cpu.variants import VARIANTS
from tests.kernels.cpu.rig import SHAPE, Bench, Model
variant = next(each for each in VARIANTS if each.name == sys.argv[1])
library = Library(variant, Path(sys.argv[2]))
for quantization in ("", "int8") if variant.int8_needs <= set(sys.argv[3].split()) else ("",):
    # Layers and rows enough for the ring of spaces to come round, and for tiles that are split.
    shape = replace(SHAPE, layers=7, hidden=96, inner=240, heads=9, kv_heads=3)
    for threads in (1, 3):
        bench = Bench(Model.random(shape, getattr(torch, variant.dtype)), library, threads, quantization=quantization)
        a, b = bench.sequence(560), bench.sequence(400)
        for counts in ((290,), (1,), (1, 40), (1, 1), (240, 200), (1, 1), (17, 17)):
            bench.step(*zip((a, b), counts))
        bench.close()
    # A ring that cannot be as long as it should.
    bench = Bench(Model.random(replace(SHAPE, layers=1), getattr(torch, variant.dtype)), library, threads=3)
    bench.step((bench.sequence(40), 40))
    bench.close()
off = array("q", [-1, 0, 999, 1000])
for vocab in (1, 63, 64, 999):
    settings = [(0.0, 1.0, 0.0, 0), (1.0, 1.0, 0.0, 0), (1.0, 0.9, 0.0, 0), (2.0, 0.9, 0.01, 0), (1.0, 1.0, 0.0, 70)]
    for temperature, top_p, min_p, top_k in settings:
        for logits in (torch.randn(1, vocab), torch.zeros(1, vocab)):
            draw = DRAW.pack(temperature, top_p, min_p, 0.9, top_k, *off.buffer_info())
            library.choose(logits.numpy(), draw)
            library.choose(logits.numpy(), DRAW.pack(temperature, top_p, min_p, 0.9, top_k, 0, 0))
print("no errors")
"""


def runtime(compiler: list[str]) -> str:
    """The sanitizer's own library, which has to come before all others; empty where there is none."""
    told = subprocess.run([*compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    path = told.stdout.strip()
    return path if os.path.isabs(path) else ""


def test_steps_touch_only_their_own_memory(tmp_path: Path) -> None:
    try:
        compiler = find_compiler()
    except NoCompiler as error:
        pytest.skip(str(error))
    if not (preloaded := runtime(compiler)):
        pytest.skip(f"{compiler[0]} has no AddressSanitizer of its own")
    flags = cpu_flags()
    variant = next((each for each in VARIANTS if each.needs <= flags), None)  # They differ in registers, not in places.
    if variant is None:
        pytest.skip("no build runs on this CPU")
    made = tmp_path / "operator.so"
    sources = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
    subprocess.run([*compiler, *FLAGS, *variant.compiler_flags, *sources, "-o", str(made)], check=True)
    done = subprocess.run(
        [sys.executable, "-c", STEPS, variant.name, str(made), " ".join(flags)],
        env={**os.environ, "LD_PRELOAD": preloaded, "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "no errors"
