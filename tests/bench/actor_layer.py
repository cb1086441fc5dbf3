"""What the actors and HTTP cost on top of the bare engine: time to first token, and throughput.

python -m tests.bench.actor_layer --toy    steps of 20 ms that only sleep: the layers' own cost, on cores that are free
python -m tests.bench.actor_layer          the default model: layers and model share the cores

The three layers take turns within each repeat, so that whatever else the machine does meets all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from configs import RemoraConfig, from_tree
from tests.bench.abort_rig import Rig, rig
from tests.bench.client import connect
from tests.bench.figures import BenchError, Reply
from tests.bench.in_process import InProcess
from tests.bench.layers import Actor, Bare, Http, Layer
from tests.bench.texts import calibrate

TTFT_BOUND_S = 0.005
THROUGHPUT_BOUND = 0.95
"""What is to be reached by the actor layer: at most so much later, at least this share of the bare engine's tokens. The
first is asked of one stream only: of several, the bare engine has all before its first step, while through actors they
come one after the other and some begin a step later."""
TOY: dict[str, Any] = {"workers": {"runner": "toy", "toy_step_s": 0.02}, "engine": {"kv_tokens": 65536}}
MODEL: dict[str, Any] = {"engine": {"kv_tokens": 16384}}
"""Runner and threads are the product's own choice, so that what users get is measured; the report says which."""
PROMPT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Sample:
    """One repeat of one layer: median seconds to the first token, and output tokens per second of all streams."""

    ttft_s: float
    tok_s: float


def sample(replies: Sequence[Reply]) -> Sample:
    """The rate counts from the first request sent to the last end, so that nothing is left out."""
    wall = max(reply.ended for reply in replies) - min(reply.sent for reply in replies)
    return Sample(
        statistics.median(reply.ttft_s for reply in replies), sum(reply.completion_tokens for reply in replies) / wall
    )


async def measured(
    layers: Sequence[Layer], streams: int, tokens: int, repeats: int, seed: int
) -> dict[str, list[Sample]]:
    """`repeats` samples of each layer, by turns; the first of each warms it up and is not counted."""
    found: dict[str, list[Sample]] = {layer.name: [] for layer in layers}
    for number in range(repeats + 1):
        for layer in layers:
            rng = random.Random(f"{seed}/{streams}/{number}/{layer.name}")
            replies = await layer.answer(rng, streams, PROMPT_TOKENS, tokens)
            if number:
                found[layer.name].append(sample(replies))
    return found


def row(streams: int, layer: str, samples: Sequence[Sample], bare: Sequence[Sample]) -> dict[str, Any]:
    """Medians; what is added is the median of the differences within each repeat, so are the shares."""
    added = statistics.median(one.ttft_s - base.ttft_s for one, base in zip(samples, bare, strict=True))
    share = statistics.median(one.tok_s / base.tok_s for one, base in zip(samples, bare, strict=True))
    return {
        "streams": streams,
        "layer": layer,
        "ttft_ms": 1000 * statistics.median(one.ttft_s for one in samples),
        "ttft_added_ms": 1000 * added,
        "tok_s": statistics.median(one.tok_s for one in samples),
        "share": share,
        "holds": (streams > 1 or added <= TTFT_BOUND_S) and share >= THROUGHPUT_BOUND,
    }


def rows_of(streams: int, found: Mapping[str, Sequence[Sample]]) -> list[dict[str, Any]]:
    bare = found[Bare.name]
    return [row(streams, layer, samples, bare) for layer, samples in found.items()]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"{'streams':>7}  {'layer':<12}{'TTFT ms':>10}{'added ms':>10}{'tok/s':>10}{'share':>9}"]
    for one in rows:
        mark = "" if one["layer"] != Actor.name else "  within bounds" if one["holds"] else "  OVER"
        lines.append(
            f"{one['streams']:>7}  {one['layer']:<12}{one['ttft_ms']:>10.1f}{one['ttft_added_ms']:>10.1f}"
            f"{one['tok_s']:>10.1f}{one['share']:>9.1%}{mark}"
        )
    return "\n".join(lines)


def same_runner(bare: str, worker: str) -> str:
    """Raises BenchError unless both layers compute by the same: else their difference says nothing of the layers."""
    if bare != worker:
        raise BenchError(f"in this process: {bare}; in the worker: {worker}")
    return bare


async def run(at: Rig, config: RemoraConfig, args: argparse.Namespace) -> tuple[str, list[dict[str, Any]]]:
    """(the runner's description, rows). Raises BenchError when engine and worker have not the same runner."""
    engine = InProcess(config)
    async with connect(at.server.url) as client:
        actor = Actor(at.worker_id, at.handle, engine.runner.info.vocab_size)
        try:
            runner = same_runner(engine.runner.info.description, at.runner())
            http = Http(client, await calibrate(client, random.Random(args.seed)))
            rows = []
            for streams in args.streams:
                layers = (Bare(engine), actor, http)
                rows += rows_of(streams, await measured(layers, streams, args.tokens, args.repeats, args.seed))
                print(f"{streams} streams: done", file=sys.stderr, flush=True)
            return runner, rows
        finally:
            await actor.close()
            engine.close()


def parsed() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--toy", action="store_true", help="the toy runner with steps of 20 ms")
    arguments.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16])
    arguments.add_argument("--tokens", type=int, default=64, help="of each reply")
    arguments.add_argument("--repeats", type=int, default=9)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--json", type=Path, default=None)
    return arguments.parse_args()


def main() -> int:
    args = parsed()
    tree = TOY if args.toy else MODEL
    try:
        with (
            tempfile.TemporaryDirectory(prefix="layers-") as folder,
            rig(Path(folder), tree, nodes=1, sessions=1) as at,
        ):
            runner, rows = asyncio.run(run(at, from_tree(RemoraConfig, tree), args))
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(f"{'toy, steps of 20 ms' if args.toy else 'default model'}; {PROMPT_TOKENS} + {args.tokens} tokens, greedy")
    print(f"runner: {runner}")
    print(table(rows))
    if args.json is not None:
        told = {"toy": args.toy, "runner": runner, "rows": rows}
        args.json.write_bytes(orjson.dumps(told, option=orjson.OPT_INDENT_2))
    return not all(one["holds"] for one in rows if one["layer"] == Actor.name)


if __name__ == "__main__":
    raise SystemExit(main())
