"""`python -m tests.bench peers`: Remora, llama.cpp's server and vLLM on the CPU, measured by turns.

All serve the same weights in bf16 with the same number of threads, and the same client on the same machine asks all of
them the same. Each is started, warmed up, measured and stopped, one after the other, round after round, so that
whatever else the machine does meets all of them. The prompts are new in every run, so that no cache answers them.
Servers are found on the PATH, or by REMORA_LLAMA_SERVER and REMORA_VLLM.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from actors.model.cache import cache_root
from actors.model.errors import ModelError
from actors.model.source import resolve, served_name
from configs.quantization import QUANTIZATIONS
from tests.bench.figures import BenchError
from tests.bench.over_http import Asked, measure, say
from tests.bench.peer_model import export_gguf
from tests.bench.peer_report import OURS, PeerReport, ServerReport, targets_table
from tests.bench.peer_servers import SERVERS, Launch, Missing, Setting, started, version_of
from tests.bench.plots import NoPlots, draw
from tests.bench.shapes import Shapes
from tests.bench.workloads import NAMES

RESULTS = Path("bench-results")
DEFAULT_WORKLOADS = ("prefill", "decode", "chat")
WARM_UP = ("prefill", "decode")
WARM_UP_TOKENS = 16


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", nargs="+", choices=tuple(SERVERS), default=None, help="default: all there are")
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=DEFAULT_WORKLOADS)
    parser.add_argument("--model", default="default", help="as `remora serve` takes it (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1, help="of each workload in each round")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="that compute, of each server"
    )
    parser.add_argument("--quantization", default="", choices=QUANTIZATIONS, help="of Remora's weights")
    parser.add_argument("--seed", type=int, default=None, help="of the prompts (default: new each time)")
    parser.add_argument("--json", type=Path, default=None, help=f"file for the results (default: in {RESULTS}/)")
    args = parser.parse_args(argv)
    args.seed = secrets.randbits(32) if args.seed is None else args.seed
    return args


def setting_of(args: argparse.Namespace, logs: Path) -> Setting:
    """Fetches and converts the model as need be. Raises BenchError."""
    try:
        folder = resolve(args.model).path
    except ModelError as error:
        raise BenchError(str(error)) from error
    name = served_name(args.model)
    gguf = cache_root("") / "bench" / f"{folder.name}.BF16.gguf"
    return Setting(
        folder=folder,
        gguf=export_gguf(folder, gguf),
        model=name,
        threads=args.threads,
        logs=logs,
        quantization=args.quantization,
    )


def found_servers(setting: Setting, wanted: Sequence[str] | None) -> list[str]:
    """Those that are installed; says what is missing and how to get it. Raises BenchError when one that was asked for
    is missing, or there is nobody to compare Remora with."""
    there = []
    for name, launch in SERVERS.items():
        if wanted is not None and name not in wanted:
            continue
        try:
            launch(setting)
        except Missing as missing:
            if wanted is not None:
                raise
            say(f"{name}: left out: {missing}")
        else:
            there.append(name)
    if wanted is None and there == [OURS]:
        raise BenchError("no peer is installed")
    return there


def measured_once(launch: Launch, setting: Setting, asked: Asked) -> tuple[str, dict[str, list[dict[str, float]]]]:
    """(the server's version, figures by workload): from its start to its end. Raises BenchError."""
    with started(launch, setting.logs):
        version = version_of(launch)
        warm_shapes = dataclasses.replace(asked.shapes, decode_tokens=WARM_UP_TOKENS, prefill_prompts=1)
        warm = dataclasses.replace(asked, names=WARM_UP, repeats=1, seed=f"{asked.seed}/warm", shapes=warm_shapes)
        say(f"{launch.name} {version}: warming up")
        asyncio.run(measure(warm))
        say(f"{launch.name}: measuring")
        _, found = asyncio.run(measure(asked))
    return version, found


def run(args: argparse.Namespace, shapes: Shapes, setting: Setting) -> PeerReport:
    """A peer that fails is left out from then on, and the report says so; what it had is kept. Raises BenchError when
    it is Remora that fails."""
    names = found_servers(setting, args.servers)
    report = PeerReport(
        taken_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        model=setting.model,
        seed=args.seed,
        rounds=args.rounds,
        repeats=args.repeats,
        threads=args.threads,
        load_before=os.getloadavg()[0],
        shapes=dataclasses.asdict(shapes),
    )
    for number in range(1, args.rounds + 1):
        for name in (name for name in names if name not in report.failed):
            launch = SERVERS[name](setting)
            say(f"round {number} of {args.rounds}: {name}")
            asked = Asked(
                url=launch.url,
                model=setting.model,
                names=tuple(args.workloads),
                repeats=args.repeats,
                seed=f"{args.seed}/{number}",
                shapes=shapes,
            )
            try:
                version, found = measured_once(launch, setting, asked)
            except BenchError as error:
                if name == OURS:
                    raise
                report.failed[name] = f"round {number}: {error}"
                say(f"{name} failed: {error}")
            else:
                report.servers.setdefault(name, ServerReport(version=version)).add(found)
            report.write(args.json)
    return report


def main(argv: list[str]) -> int:
    args = parsed(argv)
    args.json = args.json or RESULTS / f"peers-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}.json"
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # Else the server that runs would stay.
    try:
        with tempfile.TemporaryDirectory(prefix="peers-") as logs:
            report = run(args, Shapes(), setting_of(args, Path(logs)))
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(report.as_text())
    print()
    print(targets_table(report.medians()))
    print(f"\nwritten to {args.json}")
    try:
        for picture in draw([(name, one.results()) for name, one in report.servers.items()], args.json.with_suffix("")):
            print(f"drawn to {picture}")
    except NoPlots as missing:
        say(str(missing))
    return 1 if report.failed else 0
