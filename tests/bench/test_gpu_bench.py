"""The script that measures GPUs runs: on a small scale, without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 220.0


@pytest.mark.slow
def test_every_table_is_printed() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.gpu", "--cpu", "--shapes", "8b"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert [line.split(":")[0].split(",")[0] for line in lines if line.startswith("## ")] == [
        "## Decode",
        "## Fresh prompts",
        "## 8b",
        "## Abort storm",
    ]
    assert sum(line.startswith("| ") for line in lines) == (1 + 2) + (1 + 1) + (1 + 2) + (1 + 1)
    assert not [line for line in lines if "WRONG" in line]
    _, _, ended, aborted, _, *left, _ = (cell.strip() for cell in lines[-1].split("|"))
    assert int(ended) > 0
    assert int(aborted) > 0
    assert left == ["0", "0", "0"]
