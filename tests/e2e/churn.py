"""Many requests with random aborts, disconnects and timeouts over a server of two workers, and what is left of them.

python -m tests.e2e.churn --requests 20000 --seed 1          the default model, as `remora serve` starts it
python -m tests.e2e.churn --requests 2000 --toy              the toy runner: no model, and every token is checked

Exit status 1 when anything did not come back, a counter does not add up, or an answer was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from actors.ingress.load_text import load_text_model
from configs import RemoraConfig, from_tree
from tests.e2e import census, churn_report
from tests.e2e.census import Census
from tests.e2e.oracles import ModelOracle
from tests.e2e.raw_http import RawClient
from tests.e2e.reckoning import differences
from tests.e2e.server import running
from tests.e2e.storm import Weather
from tests.e2e.storm_run import storm

TOMBSTONE_S = 10.0
LAPSE_S = 120.0
"""Until everything that is remembered for a while is forgotten: a clock of an idle session is the longest."""
PROGRESS_S = 30.0
FILLED = 0.1
MAX_FILLS = 100
WARM_SHARE = 0.05
WARM_LEAST = 120
"""Requests before the first count: until pools are filled, and pages of the KV cache touched."""
TOY: dict[str, Any] = {
    "workers": {"count": 2, "runner": "toy", "toy_step_s": 0.005},
    "engine": {"kv_tokens": 8192, "max_running": 8, "max_waiting": 64, "check_invariants": True},
    "sessions": {"idle_timeout_s": 60.0},
    "cluster": {"ingress_lease_s": 30.0},
}
MODEL: dict[str, Any] = {
    "workers": {"count": 2},
    "engine": {"kv_tokens": 12288, "max_running": 16, "max_waiting": 64, "check_invariants": True},
    "sessions": {"idle_timeout_s": 90.0},
    # On a machine that has other things to do, too, an ingress is not dead for standing still a while.
    "cluster": {"ingress_lease_s": 30.0},
}


def configuration(toy: bool) -> dict[str, Any]:
    chosen = TOY if toy else MODEL
    return {**chosen, "engine": {**chosen["engine"], "tombstone_s": TOMBSTONE_S}}


def weather_for(client: RawClient, config: dict[str, Any], rng: random.Random) -> Weather:
    if config["workers"].get("runner") == "toy":
        return Weather(client, rng, pressure=True, longest=800)
    oracle = ModelOracle(load_text_model(from_tree(RemoraConfig, config)))
    return Weather(client, rng, oracle=oracle, shorten=3, longest=400, lateness_s=0.4, settle_s=60.0)


async def churn(
    weather: Weather, pid: int, requests: int, sessions: int, warm: int
) -> tuple[Census, Census, Counter[str]]:
    """Warm up, count, churn, count again. What was held before and after, and what clients heard in between."""
    await storm(weather, sessions, 0, requests=warm)
    await fill(weather)
    before = await lapsed(weather, pid)
    warmed = Counter(weather.answers)
    weather.seen.clear()
    telling = asyncio.create_task(_tell(weather, weather.sent, requests))
    await storm(weather, sessions, 0, requests=weather.sent + requests)
    telling.cancel()
    after = await lapsed(weather, pid)
    return before, after, weather.answers - warmed


async def fill(weather: Weather) -> None:
    """Send prompts that share nothing until every page of the KV cache has been used: the system gives memory only
    when it is touched, and that would look like a leak."""
    for _ in range(MAX_FILLS):
        rows = (await weather.client.call("GET", "/v1/stats")).tree["workers"]
        if all(row["pages"]["free"] < FILLED * row["pages"]["total"] for row in rows):
            return
        texts = [f"{weather.rng.random()} ".join("abcdefghijklmnopqrstuvwxyz") for _ in range(8)]
        bodies = [{"messages": [{"role": "user", "content": text}], "max_tokens": 1} for text in texts]
        await asyncio.gather(*(weather.chat(body) for body in bodies))
    raise RuntimeError(f"the KV cache has free pages after {MAX_FILLS} rounds")


async def lapsed(weather: Weather, pid: int) -> Census:
    """The census once nothing is remembered any more that is to be forgotten by itself."""
    give_up_at = time.monotonic() + LAPSE_S
    while True:
        counted = await census.take(weather.client, pid)
        waits = [
            held[what]
            for held in counted.held.values()
            for what in ("clocks", "tombstones", "recently ended")
            if held.get(what)
        ]
        if (not waits and not counted.unrest()) or time.monotonic() > give_up_at:
            return counted
        await asyncio.sleep(0.5)


async def _tell(weather: Weather, already: int, requests: int) -> None:
    start = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_S)
        done, took = weather.sent - already, time.monotonic() - start
        print(f"{took:6.0f} s: {done:,} of {requests:,}, {done / took:.1f}/s, {len(weather.faults)} faults", flush=True)


def parsed() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--requests", type=int, default=20_000)
    arguments.add_argument("--seed", type=int, default=None, help="chosen and printed when not given")
    arguments.add_argument(
        "--concurrency", type=int, default=24, help="sessions, each with up to three requests at once"
    )
    arguments.add_argument("--toy", action="store_true", help="the toy runner instead of the default model")
    arguments.add_argument("--json", type=Path, default=None, help="write everything there, too")
    return arguments.parse_args()


def main() -> int:
    args = parsed()
    seed = random.randrange(10**6) if args.seed is None else args.seed
    runner = "the toy runner" if args.toy else "the default model"
    print(f"{args.requests:,} requests, {args.concurrency} sessions at a time, {runner}, seed {seed}", flush=True)
    config, warm = configuration(args.toy), max(WARM_LEAST, int(args.requests * WARM_SHARE))
    with tempfile.TemporaryDirectory(prefix="churn-") as folder, running(Path(folder), config) as server:
        weather = weather_for(RawClient("127.0.0.1", server.port), config, random.Random(seed))
        start = time.monotonic()
        before, after, answers = asyncio.run(churn(weather, server.process.pid, args.requests, args.concurrency, warm))
        took_s = time.monotonic() - start
    wrong = differences(before, after, answers) + weather.faults
    print(churn_report.held_table(before, after), end="\n\n")
    print(churn_report.ends_table(before, after, answers), end="\n\n")
    print("moves:", ", ".join(f"{name} {count:,}" for name, count in sorted(weather.seen.items())))
    print(f"seed {seed}: {took_s:,.0f} s; {len(wrong)} differences or faults")
    for line in wrong:
        print(f"  {line}", file=sys.stderr)
    if args.json is not None:
        tree = churn_report.tree(before, after, answers, wrong, seed=seed, toy=args.toy, took_s=took_s)
        args.json.write_bytes(orjson.dumps(tree, option=orjson.OPT_INDENT_2))
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
