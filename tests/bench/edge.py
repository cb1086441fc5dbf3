"""`python -m tests.bench edge`: what the way from worker to client costs, behind Serve's proxies and behind HAProxy.

Servers of toy workers, whose steps sleep and so cost nothing, take turns. What their processes use while streams run is
read from /proc, by who it is, and told per token that arrived. On a machine whose cores compute, too, this is time that
the model does not get.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench.figures import Figures, Summary, summarise
from tests.bench.over_http import Asked, measure, say
from tests.bench.served import Launch, remora_launch, started
from tests.bench.shapes import Shapes
from tests.e2e.census import descendants

EDGES = {"proxy": False, "haproxy": True}
"""By the name in the table: `ingress.haproxy`."""
PARTS = {
    "WorkerActor": "worker",
    "ServeReplica:remora:ingress": "ingress",
    "ProxyActor": "edge",
    "HAProxyManager": "edge",
    "haproxy": "edge",
}
"""By what a process's title has in it. All others are `rest`: Ray's own, the pool, the store."""
REST = "rest"
TICKS = os.sysconf("SC_CLK_TCK")
WARM_TOKENS = 16


def launch(haproxy: bool, step_s: float, folder: Path) -> Launch:
    settings = {"workers.runner": "toy", "workers.toy_step_s": step_s, "ingress.haproxy": haproxy}
    return remora_launch(settings, folder)


def measured(haproxy: bool, step_s: float, streams: Sequence[int]) -> dict[str, Figures]:
    """Figures of one server by workload. Raises BenchError."""
    shapes = dataclasses.replace(Shapes(), decode_concurrency=(1,), decode_tokens=WARM_TOKENS)
    with tempfile.TemporaryDirectory(prefix="edge-") as folder:
        server = launch(haproxy, step_s, Path(folder))
        with started(server, Path(folder)) as pid:
            _decode(server.url, shapes)
            return {f"decode_{count}": _one(server.url, pid, count) for count in streams}


def _one(url: str, pid: int, streams: int) -> Figures:
    shapes = dataclasses.replace(Shapes(), decode_concurrency=(streams,))
    before = used_s(pid)
    told = _decode(url, shapes)
    spent = {part: seconds - before.get(part, 0.0) for part, seconds in used_s(pid).items()}
    tokens = told["output_tokens"]
    figures = {f"{part} µs a token": spent.get(part, 0.0) / tokens * 1e6 for part in (*_parts(), REST)}
    return {**figures, "all µs a token": sum(spent.values()) / tokens * 1e6, "ttft_p50_s": told["ttft_p50_s"]}


def _parts() -> list[str]:
    return list(dict.fromkeys(PARTS.values()))


def _decode(url: str, shapes: Shapes) -> Figures:
    asked = Asked(url=url, names=("decode",), repeats=1, seed=secrets.token_hex(8), shapes=shapes)
    _, found = asyncio.run(measure(asked))
    ((figures,),) = found.values()
    return figures


def used_s(root_pid: int) -> dict[str, float]:
    """CPU seconds that the processes under `root_pid` have used so far, by part."""
    found: dict[str, float] = {}
    for pid in descendants(root_pid):
        process = Path(f"/proc/{pid}")
        try:
            title = process.joinpath("cmdline").read_bytes().decode(errors="replace")
            fields = process.joinpath("stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        except OSError:
            continue  # It has just ended.
        part = next((part for known, part in PARTS.items() if known in title), REST)
        found[part] = found.get(part, 0.0) + (int(fields[11]) + int(fields[12])) / TICKS
    return found


def table(found: dict[str, dict[str, dict[str, Summary]]]) -> str:
    """Medians by workload and edge; behind each but the first edge's, its ratio to the first."""
    first, *others = found
    lines = [f"{'':34}{first:>12}" + "".join(f"{name:>12}{'':9}" for name in others)]
    for workload, figures in found[first].items():
        lines.append(workload)
        for name, summary in figures.items():
            cells = [f"{summary.median:>12.3f}" if summary.median < 1 else f"{summary.median:>12.0f}"]
            for other in others:
                value = found[other][workload][name].median
                ratio = f"×{value / summary.median:.2f}" if summary.median else ""
                cells.append((f"{value:>12.3f}" if value < 1 else f"{value:>12.0f}") + f"{ratio:>9}")
            lines.append(f"  {name:32}{''.join(cells)}".rstrip())
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench edge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="servers of each kind")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--step-s", type=float, default=0.015, help="of the toy model (default: %(default)s)")
    args = parser.parse_args(argv)
    runs: dict[str, list[dict[str, Figures]]] = {name: [] for name in EDGES}
    for number in range(args.repeats):
        for name, haproxy in EDGES.items():
            say(f"{number + 1} of {args.repeats}: {name}")
            runs[name].append(measured(haproxy, args.step_s, args.streams))
    summaries = {
        name: {workload: summarise([run[workload] for run in each]) for workload in each[0]}
        for name, each in runs.items()
    }
    print(table(summaries))
    return 0
