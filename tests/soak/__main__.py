"""`python -m tests.soak`: the random machines for a long time, from a seed that is printed.

First the engine alone: Hypothesis drives `EngineMachine` until it has run `--steps` rules, in chunks, each from a seed
of its own. Then whole clusters: seed after seed of `tests.sim.chaos` for `--minutes`. Both go on after a failure; each
is shown with the command that repeats it. At the end a table tells how often each interesting thing happened, since a
random test that never gets there proves nothing.

Ctrl-C ends the part that runs, and shows what it came to. Exit status 1 if anything failed, or if something on the list
of what has to happen never did.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence

from tests.soak.cluster_soak import soak_cluster
from tests.soak.machine_soak import soak_machine

ENGINE_HAS_TO = (
    "wakes",
    "preemptions",
    "evicted slots",
    "ends: superseded",
    "forks",
    "rollbacks",
    "grammars compiled",
    "pages missed",
    "late store answers",
)
CLUSTER_HAS_TO = (
    "wakes",
    "preemptions",
    "evicted slots",
    "ends: superseded",
    "forks",
    "rollbacks",
    "grammars compiled",
    "late store answers",
    "pages missed",
    "images lost",
    "workers lost",
    "ends while KV was read",
)


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    seed = int.from_bytes(os.urandom(3), "big") if options.seed is None else options.seed
    print(f"seed {seed}: {options.steps} steps of the engine machine, then {options.minutes:g} minutes of clusters")
    failures = 0
    for name, has_to, work in (
        ("engine machine", ENGINE_HAS_TO, lambda: soak_machine(seed, options.steps)),
        ("clusters", CLUSTER_HAS_TO, lambda: soak_cluster(seed, options.minutes * 60)),
    ):
        began = time.monotonic()
        counts, failed = work()
        _show(name, counts, time.monotonic() - began)
        for how_to_repeat, error in failed:
            print(f"\nFAILED. Again with: {how_to_repeat}\n", *traceback.format_exception(error), sep="")
        never = [what for what in has_to if counts and not counts[what]]
        if never:
            print(f"{name}: these never happened: {', '.join(never)}")
        failures += len(failed) + len(never)
    print(f"\nseed {seed}: " + (f"{failures} things are wrong" if failures else "all is well"))
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--steps", type=int, default=200_000, help="rules of the engine machine to run; 0: none")
    parser.add_argument("--minutes", type=float, default=10.0, help="of random clusters; 0: none")
    parser.add_argument("--seed", type=int, help="of an earlier run, to repeat it")
    return parser


def _show(name: str, counts: Counter[str], took_s: float) -> None:
    print(f"\n{name}, {took_s:.0f} s:")
    for what, count in sorted(counts.items()):
        print(f"  {count:>10,}  {what}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
