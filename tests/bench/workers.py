"""`python -m tests.bench workers`: two workers on one machine against one that has all of its cores, by turns.

Both are what the product makes of `workers.count`: each worker computes with an equal share of the cores. Two are to
have nearly the throughput of one, and to keep its rules: a chat finds what it said before in its worker's cache,
whichever of the two that is, and when clients have left in the middle of anything, no request holds a page (else this
fails).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.bench import by_turns
from tests.bench.bench_models import setting_of
from tests.bench.peer_servers import Setting, remora_settings
from tests.bench.served import Launch, remora_launch
from tests.bench.servers_report import ServersReport, Target
from tests.bench.shapes import Shapes

COUNTS: Mapping[str, int] = {"1 worker": 1, "2 workers": 2}
JUDGED = "2 workers"
DEFAULT_WORKLOADS = ("decode", "chat", "abort_storm")
STREAMS = (8, 16)
# All tokens over the whole time. The sum of the streams' own rates would count a worker that has fewer of them, and is
# done early, as if it went on.
TARGETS = (
    Target(name="8 streams, output tok/s", workload="decode_8", figure="with_prefill_tok_s", times=0.95),
    Target(name="16 streams, output tok/s", workload="decode_16", figure="with_prefill_tok_s", times=0.95),
    Target(name="chat, output tok/s", workload="chat", figure="output_tok_s", times=0.95),
    Target(name="chat, share found in cache", workload="chat", figure="cached_ratio", times=0.99),
)


def launch(name: str, setting: Setting) -> Launch:
    settings = {**remora_settings(setting), "workers.count": COUNTS[name]}
    return remora_launch(settings, setting.logs, name=name)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench workers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    by_turns.add_options(parser, DEFAULT_WORKLOADS, rounds=3)
    return by_turns.parsed(parser, argv, "workers")


def run(args: argparse.Namespace, shapes: Shapes, setting: Setting) -> ServersReport:
    """Raises BenchError when the server of two workers fails."""
    report = by_turns.new_report(args, setting.model, setting.threads, shapes, JUDGED, TARGETS)
    launches = {name: partial(launch, name, setting) for name in COUNTS}
    by_turns.measure_all(launches, report, args, shapes, setting.logs)
    return report


def main(argv: list[str]) -> int:
    args = parsed(argv)
    by_turns.stop_on_sigterm()
    shapes = dataclasses.replace(Shapes(), decode_concurrency=STREAMS)
    with tempfile.TemporaryDirectory(prefix="workers-") as logs:
        report = run(args, shapes, setting_of(args.model, len(os.sched_getaffinity(0)), Path(logs)))
    return by_turns.tell(report, args.json)
