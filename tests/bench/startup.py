"""`python -m tests.bench startup`: from `remora serve` to the first /health that says 200, by phases.

The model has to be on this machine already. What each phase took is seen from outside (the processes that Ray starts,
and what it calls them), so that another checkout can be measured by the same program: `--trees A B` takes turns, which
is the only way to compare two on a machine that does other things. Times are seconds since the command was started.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.bench.figures import Figures, Summary, summarise
from tests.bench.process_watch import ProcessWatch, Seen, pss_bytes
from tests.bench.served import await_health, remora_launch, spawned

LOOK_S = 0.03
WORKER = "WorkerActor"
MIB = 2**20


def measured(tree: Path, workers: int, settings: Mapping[str, object], python: str) -> Figures:
    """One start and stop of what is checked out at `tree`. Raises BenchError when it does not answer."""
    with tempfile.TemporaryDirectory(prefix="startup-") as folder:
        logs = Path(folder)
        launch = remora_launch({"workers.count": workers, **settings}, logs, python=python)
        launch = replace(launch, folder=tree, environment={"PYTHONPATH": str(tree)})
        begun = time.monotonic()
        with spawned(launch, logs) as process:
            with ProcessWatch(process.pid) as watch:
                listening, healthy = await_health(launch, process, logs, LOOK_S)
            memory = _memory_of_workers(watch)
            return {**_phases(watch, begun), "port open": listening - begun, "healthy": healthy - begun, **memory}


def _phases(watch: ProcessWatch, begun: float) -> Figures:
    seen = watch.seen.values()

    def earliest(at: Callable[[Seen], float | None]) -> float | None:
        return min((found for one in seen if (found := at(one)) is not None), default=None)

    processes = {
        "store: process": "ray::StoreService",
        "worker: process": WORKER,
        "Serve: controller": "ray::ServeController",
        "Serve: proxy": "ray::ProxyActor",
        "pool: process": "ray::ServeReplica:remora:pool",
        "ingress: process": "ray::ServeReplica:remora:ingress",
    }
    points = {
        "Ray's first process": earliest(lambda one: one.begun),
        "raylet": earliest(lambda one: None if one.first("/raylet ") is None else one.begun),
        **{name: earliest(partial(Seen.first, part=title)) for name, title in processes.items()},
        "worker: ready": earliest(partial(Seen.built, part=WORKER)),
    }
    return {name: at - begun for name, at in points.items() if at is not None}


def _memory_of_workers(watch: ProcessWatch) -> Figures:
    sizes = [pss_bytes(pid) for pid, one in watch.seen.items() if one.first(WORKER) is not None]
    return {"workers' Pss MiB": sum(sizes) / MIB}


def _common(runs: Sequence[Figures]) -> list[Figures]:
    """What all of them name: a process may be gone before it was looked at."""
    names = [name for name in runs[0] if all(name in run for run in runs)]
    return [{name: run[name] for name in names} for run in runs]


def table(found: dict[str, dict[str, Summary]]) -> str:
    names = list(dict.fromkeys(name for summaries in found.values() for name in summaries))
    lines = [f"{'seconds':<22}" + "".join(f"{label:>28}" for label in found)]
    for name in names:
        cells = [found[label].get(name) for label in found]
        texts = ["" if one is None else f"{one.median:.2f} ({one.least:.2f}–{one.most:.2f})" for one in cells]
        lines.append(f"{name:<22}" + "".join(f"{text:>28}" for text in texts))
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench startup", description=__doc__)
    parser.add_argument("--trees", type=Path, nargs="+", default=[Path.cwd()], help="checkouts, measured by turns")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="for the server")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs the server")
    args = parser.parse_args(argv)
    found: dict[str, list[Figures]] = {str(tree.absolute()): [] for tree in args.trees}
    settings = {path: value for path, _, value in (assignment.partition("=") for assignment in args.set)}
    for number in range(args.repeats):
        for tree, runs in found.items():
            runs.append(measured(Path(tree), args.workers, settings, args.python))
            print(f"{number + 1} of {args.repeats}: {tree}: {runs[-1]['healthy']:.2f} s", file=sys.stderr)
    print(table({tree: summarise(_common(runs)) for tree, runs in found.items()}))
    return 0
