"""`python -m tests.bench`: measure a running server, or with --in-process the engine and runner alone.

`--compare A.json B.json`: figures that were measured before, side by side.
`python -m tests.bench edge`: what the way from worker to client costs; `startup`: how long a start takes.
`python -m tests.bench engine`: what a step costs the engine; `turns`: what a turn costs, as sessions grow.
`python -m tests.bench quality`: what int8 weights cost in quality.
`python -m tests.bench peers`: Remora, llama.cpp and vLLM by turns; `workers`: two workers against one.
`python -m tests.bench table FILE ...`: results as Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import random
import secrets
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from configs import load
from tests.bench import edge, engine_step, peers, quality, result_tables, startup, turn_cost, workers
from tests.bench.compare import labelled, table
from tests.bench.figures import BenchError, Summary, summarise
from tests.bench.in_process import IN_PROCESS_NAMES, InProcess
from tests.bench.over_http import Asked, measure, say
from tests.bench.plots import Measured as Labelled
from tests.bench.plots import NoPlots, draw
from tests.bench.report import Report
from tests.bench.shapes import Shapes
from tests.bench.workloads import NAMES

RESULTS = Path("bench-results")
PARTS: dict[str, Callable[[list[str]], int]] = {
    "edge": edge.main,
    "engine": engine_step.main,
    "turns": turn_cost.main,
    "peers": peers.main,
    "quality": quality.main,
    "startup": startup.main,
    "table": result_tables.main,
    "workers": workers.main,
}
"""What can be measured by itself, by the first argument."""
Measured = tuple[dict[str, str], dict[str, dict[str, Summary]]]
"""(what was measured, results by workload and figure)"""


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="server to measure (default: %(default)s)")
    parser.add_argument("--model", default="", help="model to ask for (default: the server's first)")
    parser.add_argument("--workloads", type=_names, default=None, metavar="A,B", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--repeats", type=_positive, default=3, help="measured runs of each workload")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the prompts (default: new each time, so that no cache answers)"
    )
    parser.add_argument("--stateless", action="store_true", help="chat by whole conversations, without sessions")
    parser.add_argument("--label", default="", help="name of this measurement (default: who owns the model)")
    parser.add_argument("--json", type=Path, default=None, help=f"file for the results (default: in {RESULTS}/)")
    parser.add_argument(
        "--compare", type=Path, nargs="+", default=None, metavar="JSON", help="measure nothing: compare these results"
    )
    parser.add_argument("--in-process", action="store_true", help="no server: engine and runner in this process")
    parser.add_argument("--config", type=Path, default=None, help="with --in-process: the settings (YAML)")
    parser.add_argument("--runner", default="", help="with --in-process: overrides workers.runner")
    parser.add_argument("--quantization", default="", help="with --in-process: overrides model.quantization")
    args = parser.parse_args(argv)
    known = IN_PROCESS_NAMES if args.in_process else NAMES
    args.workloads = args.workloads or known
    unknown = [name for name in args.workloads if name not in known]
    if unknown:
        parser.error(f"--workloads: {', '.join(unknown)}: not one of {', '.join(known)}")
    if args.seed is None:
        args.seed = secrets.randbits(32)
    return args


def over_http(args: argparse.Namespace, shapes: Shapes) -> Measured:
    asked = Asked(
        url=args.url,
        model=args.model,
        names=args.workloads,
        repeats=args.repeats,
        seed=str(args.seed),
        shapes=shapes,
        stateless=args.stateless,
    )
    target, found = asyncio.run(measure(asked))
    return target, {name: summarise(repeats) for name, repeats in found.items()}


def in_process(args: argparse.Namespace, shapes: Shapes) -> Measured:
    overrides = {"model.id": args.model, "workers.runner": args.runner, "model.quantization": args.quantization}
    config = load(args.config, {key: value for key, value in overrides.items() if value})
    engine = InProcess(config)
    try:
        say("warming up")
        rng = random.Random(f"{args.seed}/warm")
        engine.measure(args.workloads, dataclasses.replace(shapes, decode_tokens=min(8, shapes.decode_tokens)), rng)
        repeats = []
        for number in range(1, args.repeats + 1):
            say(f"repeat {number} of {args.repeats}")
            repeats.append(engine.measure(args.workloads, shapes, random.Random(f"{args.seed}/{number}")))
    finally:
        engine.close()
    results = {name: summarise([repeat[name] for repeat in repeats]) for name in repeats[0]}
    target = {"model": config.model.id, "runner": engine.runner.info.description, "mode": "in-process"}
    return target, results


def bench(argv: list[str] | None = None, shapes: Shapes | None = None) -> Report:
    """Measure, print, write. Raises BenchError."""
    return run(parse(argv), shapes or Shapes())


def run(args: argparse.Namespace, shapes: Shapes) -> Report:
    """What `bench` does, with options that were read. Raises BenchError."""
    now, load_before = datetime.now(timezone.utc), os.getloadavg()[0]
    target, results = in_process(args, shapes) if args.in_process else over_http(args, shapes)
    report = Report(
        label=args.label or target.get("owner") or target["mode"],
        taken_at=now.isoformat(timespec="seconds"),
        seed=args.seed,
        repeats=args.repeats,
        load_before=load_before,
        target=target,
        shapes=dataclasses.asdict(shapes),
        results=results,
    )
    path = args.json or RESULTS / f"{now:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report.as_json(), encoding="utf-8")
    print(report.as_text())
    print(f"\nwritten to {path}")
    pictures([(report.label, report.results)], path.with_suffix(""))
    return report


def show_comparison(paths: list[Path]) -> None:
    """Raises BenchError."""
    measured = labelled(paths)
    print(table(measured))
    pictures(measured, paths[-1].with_name("-against-".join(path.stem for path in paths)))


def pictures(measured: Sequence[Labelled], stem: Path) -> None:
    """Without matplotlib the figures are all there is, and it says so."""
    try:
        for path in draw(measured, stem):
            print(f"drawn to {path}")
    except NoPlots as missing:
        say(str(missing))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def main() -> int:
    part = PARTS.get(sys.argv[1]) if len(sys.argv) > 1 else None
    try:
        if part is not None:
            return part(sys.argv[2:])
        args = parse(None)
        if args.compare:
            show_comparison(args.compare)
        else:
            run(args, Shapes())
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
