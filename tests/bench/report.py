"""What was measured, where and with what: for people as tables, for programs as JSON."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.figures import Summary

PACKAGES = ("remora", "torch", "ray", "httpx")
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`target`: what was measured (URL, model, mode). `results[workload][figure]`. `taken_at`: ISO 8601, UTC.
    `load_before`: how many processes wanted a core over the last minute; above 0 something else disturbs."""

    label: str
    taken_at: str
    seed: int
    repeats: int
    load_before: float
    target: dict[str, str]
    shapes: dict[str, Any]
    results: dict[str, dict[str, Summary]]

    def as_json(self) -> str:
        tree = {**dataclasses.asdict(self), "machine": machine(), "versions": versions()}
        return json.dumps(tree, indent=2) + "\n"

    def as_text(self) -> str:
        about = {
            "label": self.label,
            **self.target,
            "machine": " · ".join(str(value) for value in machine().values()),
            "versions": " ".join(f"{name} {version}" for name, version in versions().items()),
            "taken": f"{self.taken_at}, seed {self.seed}, {self.repeats} repeats, load before {self.load_before:.2f}",
        }
        lines = [f"{name:10}{value}" for name, value in about.items()]
        for workload, figures in self.results.items():
            lines += ["", *table(workload, figures)]
        return "\n".join(lines)


def table(workload: str, figures: dict[str, Summary]) -> list[str]:
    """Lines: each figure's median and spread over the repeats."""
    lines = [f"{workload:24}{'median':>12}{'min':>12}{'max':>12}"]
    for name, summary in figures.items():
        numbers = (summary.median, summary.least, summary.most)
        lines.append(f"  {name:22}" + "".join(f"{shown(number):>12}" for number in numbers))
    return lines


def shown(number: float) -> str:
    """Three or four digits that matter, without an exponent."""
    size = abs(number)
    if number == int(number) and size >= 1:
        return f"{number:.0f}"
    return f"{number:.1f}" if size >= 10 else f"{number:.3f}"


def machine() -> dict[str, str | int | float]:
    """Cores are those that this process may use."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Of Python and of what is installed beside this client; a server elsewhere may have others."""
    found = {"python": platform.python_version()}
    installed = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions()}
    found.update({name: installed[name] for name in PACKAGES if name in installed})
    return found


def _cpu_model() -> str:
    if CPUINFO.exists():
        for line in CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
