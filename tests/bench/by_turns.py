"""Servers measured by turns: each is started, warmed up, measured and stopped, one after the other, round after round.

So whatever else the machine does meets all of them. The prompts are new in every run, so that no cache answers them.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from tests.bench import bench_models
from tests.bench.figures import BenchError
from tests.bench.over_http import Asked, measure, say
from tests.bench.plots import NoPlots, draw
from tests.bench.served import Launch, started, version_of
from tests.bench.servers_report import ServerReport, ServersReport, Target, targets_table
from tests.bench.shapes import Shapes
from tests.bench.workloads import NAMES

RESULTS = Path("bench-results")
WARM_UP = ("prefill", "decode")
WARM_UP_TOKENS = 16
REST_S = 2.0
"""Before each workload: twice `cluster.heartbeat_s`, so that sessions are placed by what workers do now, which is
nothing, and not by what they did for the workload before."""
Measured = tuple[str, dict[str, list[dict[str, float]]]]
"""(a server's version, figures by workload)"""


def add_options(parser: argparse.ArgumentParser, workloads: Sequence[str], rounds: int) -> None:
    """What every measurement by turns can be told, with its defaults."""
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=workloads)
    parser.add_argument("--model", default="default", help=bench_models.HELP)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--repeats", type=int, default=1, help="of each workload in each round")
    parser.add_argument("--seed", type=int, default=None, help="of the prompts (default: new each time)")
    parser.add_argument("--json", type=Path, default=None, help=f"file for the results (default: in {RESULTS}/)")


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str], name: str) -> argparse.Namespace:
    """With seed and file chosen where they were not given. `name`: of the measurement, for the file."""
    args = parser.parse_args(argv)
    args.seed = secrets.randbits(32) if args.seed is None else args.seed
    args.json = args.json or RESULTS / f"{name}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}.json"
    return args


def new_report(
    args: argparse.Namespace, model: str, threads: int, shapes: Shapes, judged: str, targets: Sequence[Target]
) -> ServersReport:
    return ServersReport(
        judged=judged,
        targets=targets,
        taken_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        model=model,
        seed=args.seed,
        rounds=args.rounds,
        repeats=args.repeats,
        threads=threads,
        load_before=os.getloadavg()[0],
        shapes=dataclasses.asdict(shapes),
    )


def measure_all(
    servers: Mapping[str, Callable[[], Launch]],
    report: ServersReport,
    args: argparse.Namespace,
    shapes: Shapes,
    logs: Path,
) -> None:
    """Fills the report, and writes it after each turn. A server that fails is left out from then on, and the report
    says so; what it had is kept. Raises BenchError when it is the one that is judged."""
    for number in range(1, args.rounds + 1):
        for name in (name for name in servers if name not in report.failed):
            say(f"round {number} of {args.rounds}: {name}")
            launch = servers[name]()
            asked = Asked(
                url=launch.url,
                model=report.model,
                names=tuple(args.workloads),
                repeats=args.repeats,
                seed=f"{args.seed}/{number}",
                shapes=shapes,
                rest_s=REST_S,
            )
            try:
                version, found = measured_once(launch, asked, logs)
            except BenchError as error:
                if name == report.judged:
                    raise
                report.failed[name] = f"round {number}: {error}"
                say(f"{name} failed: {error}")
            else:
                report.servers.setdefault(name, ServerReport(version=version)).add(found)
            report.write(args.json)


def measured_once(launch: Launch, asked: Asked, logs: Path) -> Measured:
    """From its start to its end. Raises BenchError."""
    with started(launch, logs):
        version = version_of(launch)
        warm_shapes = dataclasses.replace(asked.shapes, decode_tokens=WARM_UP_TOKENS, prefill_prompts=1)
        warm = dataclasses.replace(
            asked, names=WARM_UP, repeats=1, seed=f"{asked.seed}/warm", shapes=warm_shapes, rest_s=0.0
        )
        say(f"{launch.name} {version}: warming up")
        asyncio.run(measure(warm))
        say(f"{launch.name}: measuring")
        _, found = asyncio.run(measure(asked))
    return version, found


def stop_on_sigterm() -> None:
    """As on a keyboard interrupt: else the server that runs would stay."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))


def tell(report: ServersReport, path: Path) -> int:
    """Prints what was found and draws it. The exit status: 1 when a server was left out."""
    print(report.as_text())
    print()
    print(targets_table(list(report.servers), report.target_rows()))
    print(f"\nwritten to {path}")
    try:
        for picture in draw([(name, one.results()) for name, one in report.servers.items()], path.with_suffix("")):
            print(f"drawn to {picture}")
    except NoPlots as missing:
        say(str(missing))
    return 1 if report.failed else 0
