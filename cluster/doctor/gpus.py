"""Which GPUs there are. A driver may hang, and a process that has touched CUDA keeps memory there: so a child asks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 60.0
DRIVER_SIGNS = ("dev/nvidiactl", "proc/driver/nvidia/version", "dev/dxg")
"""Any of these files says that a driver is loaded (the last one on Windows' Linux)."""

ASK = """
import json, torch
if torch.version.cuda is None:
    print(json.dumps({"why_none": f"a driver is loaded, but torch {torch.__version__} is built without CUDA"}))
elif not torch.cuda.is_available():
    print(json.dumps({"why_none": f"torch {torch.__version__} finds no GPU that works"}))
else:
    gpus = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        gpus.append({"name": torch.cuda.get_device_name(index), "free_bytes": free, "total_bytes": total,
                     "capability": list(torch.cuda.get_device_capability(index))})
    print(json.dumps({"gpus": gpus}))
"""


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Gpus:
    """`why_none`: empty if there are any."""

    found: tuple[Gpu, ...]
    why_none: str = ""


def look(
    root: Path = Path("/"), command: Sequence[str] = (sys.executable, "-c", ASK), patience_s: float = PATIENCE_S
) -> Gpus:
    """Without a driver nobody is asked. What goes wrong is why there are none."""
    if not any((root / sign).exists() for sign in DRIVER_SIGNS):
        return Gpus((), "no NVIDIA driver is loaded")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience_s, check=False)
    except subprocess.TimeoutExpired:
        return Gpus((), f"the driver did not answer within {patience_s:.0f} s")
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Gpus((), f"asking for GPUs failed: {last}")
    found = tuple(
        Gpu(gpu["name"], tuple(gpu["capability"]), gpu["total_bytes"], gpu["free_bytes"])
        for gpu in answer.get("gpus", [])
    )
    return Gpus(found, answer.get("why_none", "" if found else "torch counts none"))
