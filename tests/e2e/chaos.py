"""Clients that know every answer, on a cluster whose processes and nodes are killed, frozen, drained and added.

python -m tests.e2e.chaos                        three minutes on two nodes
python -m tests.e2e.chaos --seconds 600 --seed 7

The toy runner's text is a hash of its context: an answer is right only if every acknowledged turn is in it, once.
Exit status 1 when anything that must be 0 is not.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from actors.worker.outbox import KEEP_LEASES
from tests.e2e import chaos_report
from tests.e2e.census import Census, take
from tests.e2e.chaos_clients import Chatter, Hopeless, Passerby
from tests.e2e.chaos_fate import Fate, blows
from tests.e2e.chaos_ledger import LEAKED, STUCK, Ledger
from tests.e2e.chaos_rig import Rig, rigged
from tests.e2e.raw_http import RawClient

WORKERS, MOST_WORKERS = 2, 3
DEAD_S = 4.0
SETTLE_S = 90.0
INGRESS_LEASE_S = 2.0
REST_S = INGRESS_LEASE_S * KEEP_LEASES + 10.0
"""Until everything is gone that is kept for a while, as what a dead ingress did not hear."""
INGRESSES = 2
LOOKS = 12
"""At the ingresses: whichever answers is asked, so that hardly one is missed."""
CONFIG: dict[str, Any] = {
    "workers": {"count": WORKERS, "runner": "toy", "toy_step_s": 0.02, "num_cpus": 1},
    "engine": {"kv_tokens": 8192, "check_invariants": True, "max_running": 16, "tombstone_s": 5.0},
    "sessions": {"idle_timeout_s": 0.0},
    "ingress": {"replicas": INGRESSES},
    "store": {"commit_timeout_s": 15.0},
    "rebalance": {"enabled": True, "min_requests": 3, "delay_s": 1.0, "pause_s": 2.0, "settle_s": 5.0},
    "cluster": {
        "namespace": "chaos",
        "heartbeat_s": 0.3,
        "suspect_s": 1.5,
        "dead_s": DEAD_S,
        "ingress_lease_s": INGRESS_LEASE_S,
        "pool_lease_s": 40.0,
        "drain_grace_s": 5.0,
    },
}


async def chaos(rig: Rig, *, seed: int, seconds: float, sessions: int, passersby: int, pause_s: float) -> Ledger:
    """Let it rage, let it settle, then ask every session for all that it ever acknowledged, close all, and look what
    is left."""
    rng, ledger = random.Random(seed), Ledger()
    http = RawClient("127.0.0.1", rig.server.port)
    prefix = f"chaos-{time.time_ns() // 10**6}"
    chatters = [Chatter(ledger, http, f"{prefix}-{number}", rng.randrange(2**32)) for number in range(sessions)]
    others = [Passerby(ledger, http, f"{prefix}-by-{number}", rng.randrange(2**32)) for number in range(passersby)]
    clients: list[Chatter | Passerby] = [*chatters, *others]
    names = {client.name for client in clients}
    fate = Fate(rig, ledger, http, names, DEAD_S, MOST_WORKERS)
    over = asyncio.Event()
    running = [asyncio.create_task(client.run(over.is_set)) for client in clients]
    await fate.run(blows(rng, seconds, pause_s, nodes=len(rig.nodes) > 1))
    if not await fate.settle(WORKERS, SETTLE_S):
        ledger.fault(STUCK, f"no {WORKERS} workers are ready {SETTLE_S:.0f} s after the last event")
    over.set()
    await asyncio.gather(*running)
    ledger.say("settled; every acknowledged turn is asked for again")
    await asyncio.gather(*(_account(chatter) for chatter in chatters))
    for wrong in await _left(http):
        ledger.fault(LEAKED, wrong)
    return ledger


async def _account(chatter: Chatter) -> None:
    try:
        await chatter.account()
        await chatter.close()
    except Hopeless:
        return  # It is in the ledger.


async def _left(http: RawClient) -> list[str]:
    """What is still held when nobody holds or wants anything, once it has had time to go."""
    give_up_at = time.monotonic() + REST_S
    while True:
        wrong: set[str] = set()
        for _ in range(LOOKS):
            census: Census = await take(http)
            wrong |= {*census.unrest(), *census.closed()}
            if wrong:
                break
        if not wrong or time.monotonic() > give_up_at:
            return sorted(wrong)
        await asyncio.sleep(0.5)


def parsed() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=180.0, help="for how long things happen")
    arguments.add_argument("--seed", type=int, default=None, help="chosen and printed when not given")
    arguments.add_argument("--sessions", type=int, default=10, help="clients with a session each")
    arguments.add_argument("--passersby", type=int, default=3, help="clients without sessions")
    arguments.add_argument("--nodes", type=int, default=2, help="beside the head; with one, it is not killed")
    arguments.add_argument("--pause", type=float, default=4.0, help="seconds between two events, on average")
    arguments.add_argument("--json", type=Path, default=None, help="write everything there, too")
    return arguments.parse_args()


def main() -> int:
    args = parsed()
    seed = random.randrange(10**6) if args.seed is None else args.seed
    print(f"chaos: {args.seconds:.0f} s, seed {seed}, {args.nodes} nodes, {args.sessions} sessions", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, rigged(Path(folder), CONFIG, args.nodes) as rig:
        ledger = asyncio.run(
            chaos(
                rig,
                seed=seed,
                seconds=args.seconds,
                sessions=args.sessions,
                passersby=args.passersby,
                pause_s=args.pause,
            )
        )
    print(chaos_report.table(ledger))
    print(f"seed {seed}: {sum(ledger.events.values())} events, {len(ledger.faults)} faults")
    for kind, what in ledger.faults:
        print(f"  {kind}: {what}", file=sys.stderr)
    if args.json is not None:
        about = {"seed": seed, "seconds": args.seconds, "nodes": args.nodes, "sessions": args.sessions}
        args.json.write_bytes(orjson.dumps(chaos_report.tree(ledger, **about), option=orjson.OPT_INDENT_2))
    return bool(ledger.faults)


if __name__ == "__main__":
    raise SystemExit(main())
