"""Clients that know every answer, on a cluster whose workers are all replaced twice and scaled up and down meanwhile.

python -m tests.e2e.rolling                     10,000 requests: 1 -> 3 workers, new settings, `remora rollout`, 3 -> 1
python -m tests.e2e.rolling --requests 2000 --workers 2

The toy runner's text is a hash of its context: an answer is right only if every turn before it is in it, once.
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

from tests.e2e.chaos_ledger import DUPLICATED, LOST, NO_HISTORY, Ledger
from tests.e2e.chaos_report import figures
from tests.e2e.chaos_rig import Rig, rigged
from tests.e2e.raw_http import RawClient
from tests.e2e.rolling_clients import ERROR, Resident, Visitor
from tests.e2e.rolling_steps import Operator

MAX_RUNNING, MAX_RUNNING_AFTER = 16, 24
CONFIG: dict[str, Any] = {
    "workers": {"count": 1, "runner": "toy", "toy_step_s": 0.002, "num_cpus": 0},
    "engine": {"kv_tokens": 16384, "check_invariants": True, "max_running": MAX_RUNNING},
    "sessions": {"idle_timeout_s": 0.0},
    "ingress": {"replicas": 2},
    "cluster": {"namespace": "rolling", "heartbeat_s": 0.2, "suspect_s": 10.0, "dead_s": 30.0, "drain_grace_s": 20.0},
}
"""Patient, so that a busy machine makes nobody suspect: nothing dies here but by our own wish."""


async def rolling(
    rig: Rig,
    folder: Path,
    *,
    requests: int,
    workers: int,
    sessions: int,
    visitors: int,
    thought_s: float,
    seed: int,
    deploy_first: bool = False,
) -> tuple[Ledger, Operator]:
    """Everything that is to be done is spread over the requests; clients go on until both are over. `deploy_first`:
    while there is one worker, which takes less time."""
    rng, ledger = random.Random(seed), Ledger()
    http = RawClient("127.0.0.1", rig.server.port)
    prefix = f"rolling-{time.time_ns() // 10**6}"
    clients: list[Resident | Visitor] = [
        *(Resident(ledger, http, f"{prefix}-{number}", rng.randrange(2**32)) for number in range(sessions)),
        *(Visitor(ledger, http, f"{prefix}-by-{number}", rng.randrange(2**32)) for number in range(visitors)),
    ]
    for client in clients:
        client.thought_s = thought_s
    operator = Operator(rig, http, folder, lambda: len(ledger.took_s))
    done = asyncio.Event()
    running = [
        asyncio.create_task(client.run(lambda: done.is_set() and len(ledger.took_s) >= requests)) for client in clients
    ]
    try:
        steps = (
            lambda: operator.scale(workers),
            lambda: operator.redeploy(MAX_RUNNING_AFTER),
            operator.rollout,
            lambda: operator.scale(1),
        )
        if deploy_first:
            steps = (steps[1], steps[0], *steps[2:])
        for number, step in enumerate(steps):
            await operator.until_answered(requests * (number * 2 + 1) // 10)
            await step()
            ledger.say(f"{operator.steps[-1].name}: {operator.steps[-1].took_s:.1f} s")
    finally:
        done.set()
    await asyncio.gather(*running)
    for client in clients:
        if isinstance(client, Resident):
            await client.account()
    return ledger, operator


def wrongs(ledger: Ledger, operator: Operator) -> list[str]:
    """Everything that is not as it must be."""
    found = [f"{kind}: {what}" for kind, what in ledger.faults]
    return found + [f"{step.name}: {step.fault}" for step in operator.steps if step.fault]


def table(ledger: Ledger, operator: Operator) -> str:
    kinds = [kind for kind, _ in ledger.faults]
    without = kinds.count(NO_HISTORY) + kinds.count(LOST) + kinds.count(DUPLICATED)
    wrong = len(kinds) - kinds.count(ERROR) - without
    median, late, slowest = figures(ledger.took_s)
    rows = [
        ("requests answered", f"{len(ledger.took_s):,}"),
        ("errors", f"{kinds.count(ERROR)}"),
        ("turns without their whole history", f"{without}"),
        ("wrong answers", f"{wrong}"),
        *((what, f"{count:,}") for what, count in sorted(ledger.done.items())),
        ("time of a request, p50 / p99 / slowest, s", f"{median:.3f} / {late:.3f} / {slowest:.3f}"),
    ]
    lines = [f"{name:<46}{figure:>24}" for name, figure in rows]
    lines += ["", f"{'meanwhile':<28}{'seconds':>9}{'requests':>10}{'ready, least':>14}{'there, most':>13}"]
    lines += [
        f"{step.name:<28}{step.took_s:>9.1f}{step.requests:>10,}{step.least_ready:>14}{step.most_there:>13}"
        for step in operator.steps
    ]
    return "\n".join(lines)


def parsed() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--requests", type=int, default=10_000, help="at least so many")
    arguments.add_argument("--workers", type=int, default=3, help="scaled up to, from one")
    arguments.add_argument("--sessions", type=int, default=12, help="clients with a session each")
    arguments.add_argument("--visitors", type=int, default=4, help="clients without sessions")
    arguments.add_argument("--thought", type=float, default=0.05, help="seconds between two requests of one, at most")
    arguments.add_argument("--seed", type=int, default=None, help="chosen and printed when not given")
    return arguments.parse_args()


def main() -> int:
    args = parsed()
    seed = random.randrange(10**6) if args.seed is None else args.seed
    print(f"rolling: {args.requests:,} requests, 1 -> {args.workers} -> 1 workers, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="rolling-") as made, rigged(Path(made), CONFIG, 0, head_cpus=2) as rig:
        ledger, operator = asyncio.run(
            rolling(
                rig,
                Path(made),
                requests=args.requests,
                workers=args.workers,
                sessions=args.sessions,
                visitors=args.visitors,
                thought_s=args.thought,
                seed=seed,
            )
        )
    print(table(ledger, operator))
    found = wrongs(ledger, operator)
    print(f"seed {seed}: {len(found)} faults")
    for what in found:
        print(f"  {what}", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
