"""What servers that took turns were found to do, and the ratios that are to be reached."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.figures import Figures, Summary, summarise
from tests.bench.report import machine, shown, versions

Medians = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Median by server, workload and figure."""


@dataclass(slots=True)
class ServerReport:
    """What one server did in all rounds."""

    version: str
    repeats: dict[str, list[Figures]] = field(default_factory=dict)

    def add(self, found: Mapping[str, Sequence[Figures]]) -> None:
        for workload, figures in found.items():
            self.repeats.setdefault(workload, []).extend(figures)

    def results(self) -> dict[str, dict[str, Summary]]:
        return {workload: summarise(figures) for workload, figures in self.repeats.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The judged server's `figure` is to be at least `times` the best other's; of a time (`_s`), at most."""

    name: str
    workload: str
    figure: str
    times: float

    @property
    def is_time(self) -> bool:
        return self.figure.endswith("_s") and not self.figure.endswith("tok_s")


@dataclass(slots=True, kw_only=True)
class ServersReport:
    """`judged`: the server that `targets` are to be reached by. `failed`: why another was left out, by its name.
    `load_before` as in `Report`."""

    judged: str
    targets: Sequence[Target]
    taken_at: str
    model: str
    seed: int
    rounds: int
    repeats: int
    threads: int
    load_before: float
    shapes: dict[str, Any]
    servers: dict[str, ServerReport] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def medians(self) -> dict[str, dict[str, dict[str, float]]]:
        return {
            name: {
                workload: {figure: one.median for figure, one in figures.items()}
                for workload, figures in server.results().items()
            }
            for name, server in self.servers.items()
        }

    def target_rows(self) -> list[TargetRow]:
        return target_rows(self.medians(), self.judged, self.targets)

    def write(self, path: Path) -> None:
        tree = {
            "taken_at": self.taken_at,
            "model": self.model,
            "seed": self.seed,
            "rounds": self.rounds,
            "repeats": self.repeats,
            "threads": self.threads,
            "load_before": self.load_before,
            "machine": machine(),
            "versions": versions(),
            "shapes": self.shapes,
            "servers": {
                name: {
                    "version": server.version,
                    "results": {
                        workload: {figure: asdict(one) for figure, one in figures.items()}
                        for workload, figures in server.results().items()
                    },
                }
                for name, server in self.servers.items()
            },
            "failed": self.failed,
            "targets": [asdict(row) for row in self.target_rows()],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")

    def as_text(self) -> str:
        about = {
            "model": f"{self.model}, bf16, {self.threads} threads",
            "machine": " · ".join(str(value) for value in machine().values()),
            "servers": ", ".join(f"{name} {server.version}" for name, server in self.servers.items()),
            "taken": f"{self.taken_at}, seed {self.seed}, {self.rounds} rounds of {self.repeats}, "
            f"load before {self.load_before:.2f}",
            **{f"failed: {name}": reason for name, reason in self.failed.items()},
        }
        return "\n".join(f"{name:10}{value}" for name, value in about.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRow:
    """One target as measured. `values`: medians by server; `ratio`: of the one that is judged over the best other's."""

    name: str
    values: dict[str, float]
    best: str
    ratio: float
    bound: str
    reached: bool


def target_rows(medians: Medians, judged: str, targets: Sequence[Target]) -> list[TargetRow]:
    """Of the targets that `judged` and at least one other were measured on."""
    rows = []
    for target in targets:
        values = {
            name: workloads[target.workload][target.figure]
            for name, workloads in medians.items()
            if target.figure in workloads.get(target.workload, {})
        }
        others = [name for name in values if name != judged]
        if judged not in values or not others:
            continue
        best = (min if target.is_time else max)(others, key=values.__getitem__)
        ratio = values[judged] / values[best]
        rows.append(
            TargetRow(
                name=target.name,
                values=values,
                best=best,
                ratio=ratio,
                bound=f"{'≤' if target.is_time else '≥'} {target.times:g}",
                reached=ratio <= target.times if target.is_time else ratio >= target.times,
            )
        )
    return rows


def targets_table(servers: Sequence[str], rows: Sequence[TargetRow]) -> str:
    """For people: every server's median, the ratio and whether it is enough."""
    lines = [f"{'':28}" + "".join(f"{name:>14}" for name in servers) + f"{'against':>15}{'ratio':>8}{'to reach':>10}"]
    for row in rows:
        cells = "".join(f"{shown(row.values[name]) if name in row.values else '–':>14}" for name in servers)
        verdict = "reached" if row.reached else "NOT YET"
        lines.append(f"{row.name:28}{cells}{row.best:>15}{row.ratio:>8.2f}{row.bound:>10}  {verdict}")
    return "\n".join(lines)
