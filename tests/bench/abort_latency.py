"""How long a worker keeps the pages of a request whose client has closed its socket (rule A6: one step and 100 ms).

python -m tests.bench.abort_latency --toy          ≥ 100 aborts in each stage, steps of 20 ms, on one node and over two
python -m tests.bench.abort_latency --aborts 30    the same with the default model
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import orjson

from tests.bench.abort_rig import Rig, rig
from tests.bench.abort_stages import Bench, Sample, Sizes

BOUND_S = 0.1
"""On top of a step."""
SESSIONS = 4
TOY: dict[str, Any] = {
    "workers": {"runner": "toy", "toy_step_s": 0.02},
    "engine": {"kv_tokens": 32768, "max_step_tokens": 256, "max_running": 2},
}
MODEL: dict[str, Any] = {"engine": {"kv_tokens": 16384, "max_running": 2}}
"""Runner, threads and the size of a step are the product's own choice; the report says which runner it was."""
TOY_SIZES = Sizes(prompt="a long text " * 580, max_tokens=1000, slots=2)
MODEL_SIZES = Sizes(prompt="a long text " * 800, max_tokens=1000, slots=2)


def measured(rig: Rig, sizes: Sizes, aborts: int, rng: random.Random, only: str) -> dict[str, Sample]:
    """A sample of each stage whose name contains `only`."""
    samples = {}
    for name, stage in Bench(rig, sizes, rng).stages().items():
        if only in name:
            samples[name] = Sample()
            for _ in range(aborts):
                rig.at_rest()
                stage(samples[name])
            rig.at_rest()
    return samples


def row(name: str, sample: Sample) -> dict[str, Any]:
    """Milliseconds."""
    late = sorted(sample.late_s)
    step_s = statistics.mean(sample.step_s)
    return {
        "stage": name,
        "n": len(late),
        "p50_ms": 1000 * quantile(late, 0.5),
        "p99_ms": 1000 * quantile(late, 0.99),
        "max_ms": 1000 * late[-1],
        "step_ms": 1000 * step_s,
        "longest_step_ms": 1000 * max(sample.step_s),
        "look_ms": 1000 * quantile(sorted(sample.look_s), 0.5),
        "longest_look_ms": 1000 * max(sample.look_s),
        "bound_ms": 1000 * (step_s + BOUND_S),
        "holds": quantile(late, 0.99) <= step_s + BOUND_S,
    }


def quantile(ordered: list[float], share: float) -> float:
    """The smallest value that at least this share of them do not exceed."""
    return ordered[math.ceil(len(ordered) * share) - 1]


def table(rows: list[dict[str, Any]]) -> str:
    columns = ("p50_ms", "p99_ms", "max_ms", "step_ms", "bound_ms", "look_ms", "longest_look_ms")
    lines = [f"{'stage':<32}{'n':>5}" + "".join(f"{name.replace('_ms', ''):>14}" for name in columns)]
    for one in rows:
        cells = "".join(f"{one[name]:>14.1f}" for name in columns)
        lines.append(f"{one['stage']:<32}{one['n']:>5}{cells}{'' if one['holds'] else '  OVER THE BOUND'}")
    return "\n".join(lines)


def parsed() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--toy", action="store_true", help="the toy runner with steps of 20 ms")
    arguments.add_argument("--aborts", type=int, default=100, help="in each stage")
    arguments.add_argument("--nodes", type=int, choices=(1, 2), default=None, help="default: first 1, then 2")
    arguments.add_argument("--stage", default="", help="only stages whose name contains this")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--json", type=Path, default=None)
    return arguments.parse_args()


def main() -> int:
    args = parsed()
    config, sizes = (TOY, TOY_SIZES) if args.toy else (MODEL, MODEL_SIZES)
    found: dict[str, list[dict[str, Any]]] = {}
    runners: dict[str, str] = {}
    for nodes in (1, 2) if args.nodes is None else (args.nodes,):
        where = "ingress and worker under one raylet" if nodes == 1 else "ingress under another raylet than the worker"
        with (
            tempfile.TemporaryDirectory(prefix="aborts-") as folder,
            rig(Path(folder), config, nodes=nodes, sessions=SESSIONS) as at,
        ):
            runner = at.runner()
            samples = measured(at, sizes, args.aborts, random.Random(args.seed), args.stage)
        found[where] = [row(name, sample) for name, sample in samples.items()]
        runners[where] = runner
        print(f"{where}; {'toy' if args.toy else 'default model'}; milliseconds")
        print(f"runner: {runner}")
        print(table(found[where]), end="\n\n", flush=True)
    if args.json is not None:
        told = {"toy": args.toy, "runners": runners, "found": found}
        args.json.write_bytes(orjson.dumps(told, option=orjson.OPT_INDENT_2))
    over = [f"{where}: {one['stage']}" for where, rows in found.items() for one in rows if not one["holds"]]
    for name in over:
        print(f"over the bound: {name}", file=sys.stderr)
    return bool(over)


if __name__ == "__main__":
    raise SystemExit(main())
