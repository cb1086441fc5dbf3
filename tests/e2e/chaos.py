"""Clients that know every answer, on a cluster whose processes and nodes are killed, frozen, drained and added.

python -m tests.e2e.chaos                        three minutes on two nodes
python -m tests.e2e.chaos --seconds 600 --seed 7
python -m tests.e2e.chaos --store redis          the sessions in a Redis of its own

Where network namespaces can be had, another node is on the far side of a cable that is cut now and then.

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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import orjson

from actors.worker.outbox import KEEP_LEASES
from tests.cluster.redis_rig import redis_server
from tests.e2e import chaos_report, netns
from tests.e2e.census import Census, take
from tests.e2e.chaos_clients import Chatter, Hopeless, Passerby
from tests.e2e.chaos_fate import Fate, blows
from tests.e2e.chaos_ledger import LEAKED, STUCK, Ledger
from tests.e2e.chaos_rig import Rig, rigged
from tests.e2e.raw_http import RawClient

WORKERS, MOST_WORKERS = 2, 3
DEAD_S = 4.0
START_S, SETTLE_S = 120.0, 90.0
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
        "stuck_s": DEAD_S,
        "start_timeout_s": 60.0,
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
    workers = WORKERS + rig.is_parted  # More than there is room for on the near side.
    fate = Fate(rig, ledger, http, names, DEAD_S, MOST_WORKERS + rig.is_parted)
    if not await fate.settle(workers, START_S):
        raise RuntimeError(f"no {workers} workers are ready after {START_S:.0f} s")
    over = asyncio.Event()
    running = [asyncio.create_task(client.run(over.is_set)) for client in clients]
    await fate.run(blows(rng, seconds, pause_s, nodes=len(rig.nodes) > 1, parted=rig.is_parted))
    if not await fate.settle(workers, SETTLE_S):
        ledger.fault(STUCK, f"no {workers} workers are ready {SETTLE_S:.0f} s after the last event")
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


@contextmanager
def prepared(folder: Path, nodes: int, store: str) -> Iterator[Rig]:
    """The cluster, with a far side where that can be had, and with its sessions where they are wanted."""
    config = {**CONFIG, "store": dict(CONFIG["store"])}
    with ExitStack() as stack:
        why = netns.why_not()
        networks = None if why else stack.enter_context(netns.two_networks())
        if why:
            print(f"nobody is cut off: {why}", flush=True)
        if store == "redis":
            redis = redis_server(folder, "--appendonly", "yes", "--appendfsync", "always", password="p",
                                 host=netns.NEAR if networks else "127.0.0.1")  # fmt: skip
            config["store"]["url"] = stack.enter_context(redis).url
        yield stack.enter_context(rigged(folder, config, nodes, networks=networks, node_cpus=1 if networks else 2))


def parsed() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=180.0, help="for how long things happen")
    arguments.add_argument("--seed", type=int, default=None, help="chosen and printed when not given")
    arguments.add_argument("--sessions", type=int, default=10, help="clients with a session each")
    arguments.add_argument("--passersby", type=int, default=3, help="clients without sessions")
    arguments.add_argument("--nodes", type=int, default=2, help="beside the head; with one, it is not killed")
    arguments.add_argument("--pause", type=float, default=4.0, help="seconds between two events, on average")
    arguments.add_argument("--store", choices=("sqlite", "redis"), default="sqlite", help="where sessions are kept")
    arguments.add_argument("--json", type=Path, default=None, help="write everything there, too")
    return arguments.parse_args()


def main() -> int:
    args = parsed()
    if not netns.is_inside() and not netns.why_not():
        netns.enter([sys.executable, "-m", "tests.e2e.chaos", *sys.argv[1:]])
    seed = random.randrange(10**6) if args.seed is None else args.seed
    about = f"{args.nodes} nodes, {args.sessions} sessions in {args.store}"
    print(f"chaos: {args.seconds:.0f} s, seed {seed}, {about}", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, prepared(Path(folder), args.nodes, args.store) as rig:
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
        told = {"seed": seed, **{name: getattr(args, name) for name in ("seconds", "nodes", "sessions", "store")}}
        args.json.write_bytes(orjson.dumps(chaos_report.tree(ledger, **told), option=orjson.OPT_INDENT_2))
    return bool(ledger.faults)


if __name__ == "__main__":
    raise SystemExit(main())
