"""`python -m tests.simulate`: Remora's policy code against synthetic load, and two baselines beside it."""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.placement import Directory
from configs import AutoscaleConfig, RebalanceConfig
from tests.simulate.directory import bytes_per_session, costs
from tests.simulate.model import WorkerModel
from tests.simulate.policies import MAX_RUNNING, HashAffinity, NoAffinity, Policy, Remora
from tests.simulate.run import Outcome, Simulation
from tests.simulate.trace import TraceShape, sessions


@dataclass(frozen=True, slots=True)
class Size:
    """`workers`: the most there may be. The trace keeps about four tenths of them busy on average."""

    workers: int
    sessions: int
    seconds: float


SIZES = {
    "tiny": Size(4, 600, 600.0),
    "small": Size(20, 10_000, 1_800.0),
    "mid": Size(100, 100_000, 3_600.0),
    "large": Size(1_000, 1_000_000, 3_600.0),
}


def policies(size: Size, seed: int) -> dict[str, Callable[[], Policy]]:
    autoscale = AutoscaleConfig(
        enabled=True,
        min_workers=max(1, size.workers // 20),
        max_workers=size.workers,
        requests_per_worker=MAX_RUNNING * 3 // 4,
        up_delay_s=5.0,
        down_delay_s=120.0,
    )
    start = start_of(size)
    return {
        Remora.name: lambda: Remora(autoscale, RebalanceConfig(enabled=True), start),
        HashAffinity.name: lambda: HashAffinity(autoscale, start),
        NoAffinity.name: lambda: NoAffinity(autoscale, start, seed),
    }


def start_of(size: Size) -> int:
    return max(1, size.workers // 5)


def simulate(size: Size, bursty: bool, seed: int, make: Callable[[], Policy]) -> Outcome:
    shape = TraceShape(size.sessions, size.seconds, bursty)
    return Simulation(sessions(shape, seed), make(), WorkerModel(batch=MAX_RUNNING), start_of(size)).run()


HEAD = ("policy", "turns", "shed", "moves", "queue p50", "queue p99", "cached", "prefilled", "GPU h", "most", "changes")


def row(outcome: Outcome) -> tuple[str, ...]:
    return (
        outcome.policy,
        f"{outcome.turns:,}",
        f"{outcome.shed:,}",
        f"{outcome.moves:,}",
        f"{outcome.queue_p(0.5):.3f} s",
        f"{outcome.queue_p(0.99):.3f} s",
        f"{outcome.cached_share:.1%}",
        f"{(outcome.prompt_tokens - outcome.cached_tokens) / 1e6:,.1f} M",
        f"{outcome.gpu_s / 3600:,.1f}",
        str(outcome.most_workers),
        str(outcome.changes),
    )


def shown(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(one, widths, strict=True)) for one in rows]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulate", description=__doc__)
    parser.add_argument("--size", choices=list(SIZES), default="mid")
    parser.add_argument("--trace", choices=["poisson", "bursty", "both"], default="both")
    parser.add_argument("--policy", choices=list(policies(SIZES["tiny"], 0)), action="append", help="default: all")
    parser.add_argument("--directory", action="store_true", help="only what the session directory costs")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    if args.directory:
        print(shown(costs((1_000, 10_000, 100_000, 1_000_000))))
        return
    size = SIZES[args.size]
    for bursty in (False, True):
        name = "bursty" if bursty else "poisson"
        if args.trace not in (name, "both"):
            continue
        print(f"\n{name}: {size.sessions:,} sessions in {size.seconds:,.0f} s, at most {size.workers:,} workers")
        began = time.perf_counter()
        rows: list[tuple[str, ...]] = [HEAD]
        for policy, make in policies(size, args.seed).items():
            if args.policy and policy not in args.policy:
                continue
            rows.append(row(simulate(size, bursty, args.seed, make)))
            print(f"  {rows[-1][0]}: {time.perf_counter() - began:.0f} s so far", flush=True)
        print(shown(rows), flush=True)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nrun time: {time.process_time():.0f} s of CPU; most memory: {most:,.0f} MiB")
    count = max(size.sessions, 1)
    print(f"session directory: {bytes_per_session(Directory, count):.0f} bytes per session, of {count:,}")


if __name__ == "__main__":
    main()
