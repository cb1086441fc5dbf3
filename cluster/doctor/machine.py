"""What this machine has. Nothing of CUDA is loaded for it: versions are read, packages not imported."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from actors.runner.torch.memory import available_bytes

PACKAGES = (
    "torch",
    "ray",
    "numpy",
    "tokenizers",
    "safetensors",
    "llguidance",
    "redis",
    "triton",
    "xformers",
    "vllm-flash-attn",
    "vllm",
    "flash-attn",
    "flash-attn-4",
)
FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "neon", "asimd")
"""Of a CPU's many, those that make a difference to us."""


@dataclass(frozen=True, slots=True)
class Machine:
    """`cores`: how many this process may use. `flags`: those of FLAGS that the CPU has. `free_bytes`: memory that may
    still be taken, None where that cannot be told. `packages`: versions; None of what is not installed."""

    python: str
    system: str
    cpu: str
    cores: int
    flags: tuple[str, ...]
    free_bytes: int | None
    packages: dict[str, str | None]


def look(root: Path = Path("/")) -> Machine:
    name, flags = _cpu(root / "proc/cpuinfo")
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=name or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        flags=tuple(flag for flag in FLAGS if flag in flags),
        free_bytes=available_bytes(root),
        packages={name: _version(name) for name in PACKAGES},
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu(cpuinfo: Path) -> tuple[str, frozenset[str]]:
    """Name and flags, empty where there is no such file: another system."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "", frozenset()
    fields: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return fields.get("model name", ""), frozenset((fields.get("flags") or fields.get("Features", "")).split())
