"""`--compare a.json b.json …`: the same figures of several measurements side by side, as ratios to the first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.bench.figures import BenchError
from tests.bench.plots import Measured
from tests.bench.report import shown
from tests.bench.written import read


def labelled(paths: Sequence[Path]) -> list[Measured]:
    """What the files hold; labels that occur twice get the file's name."""
    found = [(label, path, results) for path in paths for label, results in read(path).measured.items()]
    labels = [label for label, _, _ in found]
    return [
        (label if labels.count(label) == 1 else f"{label} ({path.stem})", results) for label, path, results in found
    ]


def table(measured: Sequence[Measured]) -> str:
    """Medians; behind each but the first, its ratio to the first. Raises BenchError when nothing can be compared."""
    base = measured[0][1]
    width = max(14, *(len(label) + 2 for label, _ in measured))
    lines = []
    for workload in (name for name in base if any(name in results for _, results in measured[1:])):
        heads = "".join(f"{label:>{width + (9 if number else 0)}}" for number, (label, _) in enumerate(measured))
        lines += ["", f"{workload:34}{heads}"]
        for figure in base[workload]:
            lines.append(f"  {figure:32}{_row(measured, workload, figure, width)}".rstrip())
    if not lines:
        raise BenchError("these measurements have no workload in common")
    return "\n".join(lines[1:])


def _row(measured: Sequence[Measured], workload: str, figure: str, width: int) -> str:
    base = measured[0][1][workload][figure].median
    cells = [f"{shown(base):>{width}}"]
    for _, results in measured[1:]:
        summary = results.get(workload, {}).get(figure)
        if summary is None:
            cells.append(f"{'–':>{width + 9}}")
        else:
            ratio = f"×{summary.median / base:.2f}" if base else ""
            cells.append(f"{shown(summary.median):>{width}}{ratio:>9}")
    return "".join(cells)
