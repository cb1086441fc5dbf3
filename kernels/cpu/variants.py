"""The operator's builds, and which of them this machine's CPU can run."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Variant:
    """One build. `dtype`: what weights, activations and K/V are stored as (sums are float32 in all of them).

    `needs`: the CPU's flags as Linux names them; what the system does not save on a switch is not among those.
    `int8_needs`: what int8 weights need besides. All else runs without.
    """

    name: str
    dtype: str
    needs: frozenset[str]
    compiler_flags: tuple[str, ...]
    int8_needs: frozenset[str] = frozenset()


_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma")
_AVX512_NEEDS = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx2", "fma"})
_VNNI = frozenset({"avx512_vnni"})

VARIANTS = (
    Variant(
        "avx512_bf16",
        "bfloat16",
        _AVX512_NEEDS | {"avx512_bf16"},
        (*_AVX512, "-mavx512bf16", "-DREMORA_BFLOAT16"),
        int8_needs=_VNNI,
    ),
    Variant("avx512", "float32", _AVX512_NEEDS, _AVX512, int8_needs=_VNNI),
    Variant("avx2", "float32", frozenset({"avx2", "fma"}), ("-mavx2", "-mfma")),
)
"""The fastest of each dtype first."""


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Empty where they cannot be told: another system or architecture."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return frozenset(flags.split())


def runnable(dtype: str, flags: frozenset[str]) -> list[Variant]:
    """The builds for `dtype` that a CPU with these flags can run, the fastest first."""
    return [variant for variant in VARIANTS if variant.dtype == dtype and variant.needs <= flags]
