"""The Triton kernels become code for GPUs that are not here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("compile_kernels.py")
PATIENCE_S = 220.0


@pytest.mark.slow
def test_every_kernel_compiles_for_every_generation_and_fits_its_shared_memory(tmp_path: Path) -> None:
    """Ampere, Hopper, Blackwell for data centres and for desks; windows, soft caps, 16 and 32 bits between them."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["sm_80", "sm_90", "sm_90", "sm_100", "sm_120"]
