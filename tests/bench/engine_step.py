"""`python -m tests.bench engine`: what one step costs the pure engine: `plan` and `commit`, without any runner.

Each case has a batch that only decodes, a queue behind it that cannot start, and idle sessions that keep their KV. What
a step costs must follow from the batch alone: the last column compares each case with the same batch on its own. What
else the worker's loop asks of the engine in a step (`expire`), and what a look at its figures costs (`snapshot`), is
told beside. All times are of this thread's CPU clock: what else the machine does is not in them.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from actors.engine.effects import StoreTurn, TurnStored
from actors.engine.engine import Engine
from actors.engine.plan import StepPlan, StepResult
from actors.engine.settings import EngineSettings
from actors.messages import OpenSession, SamplingParams, SessionMode, Submit, TurnOf
from actors.process import settle_garbage

PROMPT_TOKENS = 64
SESSION_TOKENS = 24
PAGE_SIZE = 16
STEPS = 400
WARM_STEPS = 40


@dataclass(frozen=True, slots=True)
class Load:
    """A batch of `running` that decodes, `waiting` behind it, and `sessions` that are idle."""

    running: int
    waiting: int = 0
    sessions: int = 0


LOADS = (
    *(Load(running, waiting) for running in (8, 64, 256, 1024) for waiting in (0, 10_000)),
    *(Load(64, 0, sessions) for sessions in (10, 10_000, 100_000)),
    Load(1024, 10_000, 100_000),
)
TARGETS_US = {8: 200.0, 64: 200.0, 1024: 1000.0}
"""Of `plan` and `commit` together, at the median, by size of the batch."""


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds of each step: `plan`, `commit`, and what else the loop asks; and of a `look` after it."""

    plan: Sequence[float]
    commit: Sequence[float]
    rest: Sequence[float]
    look: Sequence[float]

    @property
    def both(self) -> list[float]:
        return [plan + commit for plan, commit in zip(self.plan, self.commit, strict=True)]


class Bench:
    """An engine under a load; whoever measures plays runner and store."""

    def __init__(self, load: Load, steps: int, depth: int = 1) -> None:
        tokens = PROMPT_TOKENS + 2 * (steps + WARM_STEPS)
        pages = load.running * (tokens // PAGE_SIZE + 2) + load.sessions * (SESSION_TOKENS // PAGE_SIZE + 2) + 4096
        self.engine = Engine(
            EngineSettings(
                page_size=PAGE_SIZE,
                num_pages=pages,
                max_context=8192,
                vocab_size=1 << 16,
                max_step_tokens=max(2048, 2 * load.running),
                max_running=load.running,
                max_waiting=load.waiting + load.running,
                depth=depth,
                session_idle_timeout_s=3600.0,
            )
        )
        self.now = 0.0
        self._launched: deque[StepPlan] = deque()
        self._sessions(load.sessions)
        self._requests(load, tokens)

    def times(self, steps: int) -> Times:
        plans, commits, rests, looks = [], [], [], []
        for _ in range(steps):
            at = time.thread_time()
            self.engine.expire(self.now)
            rests.append(1e6 * (time.thread_time() - at))
            at = time.thread_time()
            self._plan()
            plans.append(1e6 * (time.thread_time() - at))
            oldest = self._launched.popleft()
            result = made_up(oldest)
            at = time.thread_time()
            self.engine.commit(oldest, result, self.now)
            commits.append(1e6 * (time.thread_time() - at))
            at = time.thread_time()
            self.engine.snapshot()
            looks.append(1e6 * (time.thread_time() - at))
            self.now += 0.01
        return Times(plans, commits, rests, looks)

    def _plan(self) -> None:
        plan = self.engine.plan(self.now)
        self.engine.take_output()
        if plan is None:
            raise RuntimeError("the batch has nothing to compute")
        self._launched.append(plan)

    def _requests(self, load: Load, max_tokens: int) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        for number in range(load.running + load.waiting):
            self._submit(f"r{number}", PROMPT_TOKENS, number, sampling, None)
        while any(request.state.value == "prefill" for request in self.engine.core.requests.running()) or not (
            self.engine.core.requests.num_running
        ):
            self._step()
        for _ in range(self.engine.settings.depth):
            self._plan()

    def _sessions(self, sessions: int) -> None:
        sampling = SamplingParams(max_tokens=2, ignore_eos=True)
        for number in range(sessions):
            name = f"s{number}"
            self.engine.handle(
                OpenSession(
                    tenant="bench", session_id=name, generation=number + 1, epoch=1, mode=SessionMode.STREAMING
                ),
                self.now,
            )
            turn = TurnOf(session_id=name, generation=number + 1, epoch=1)
            self._submit(f"t{number}", SESSION_TOKENS, number, sampling, turn)
            while self.engine.has_work:
                self._step()

    def _submit(self, key: str, tokens: int, number: int, sampling: SamplingParams, turn: TurnOf | None) -> None:
        ids = (number & 0xFFFF, number >> 16, *range(tokens - 2))
        self.engine.handle(
            Submit(key=key, rid=key, ingress="bench", tenant="bench", input_ids=ids, sampling=sampling, turn=turn),
            self.now,
        )

    def _step(self) -> None:
        plan = self.engine.plan(self.now)
        if plan is None:
            raise RuntimeError("there is work, and nothing to plan")
        for output in self.engine.commit(plan, made_up(plan), self.now):
            if isinstance(output, StoreTurn):
                self.engine.handle(TurnStored(session=output.session, uid=output.uid), self.now)


def made_up(plan: StepPlan) -> StepResult:
    return StepResult(sampled={item.uid: 7 for item in plan.each() if item.samples})


def measure(load: Load, steps: int) -> Times:
    bench = Bench(load, steps)
    bench.times(WARM_STEPS)
    before = gc.get_threshold()
    settle_garbage()  # As a worker does.
    try:
        return bench.times(steps)
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def row(load: Load, times: Times, alone_us: float) -> dict[str, float]:
    both = times.both
    median, target = statistics.median(both), TARGETS_US.get(load.running)
    return {
        "running": load.running,
        "waiting": load.waiting,
        "sessions": load.sessions,
        "plan": statistics.median(times.plan),
        "commit": statistics.median(times.commit),
        "both": median,
        "p99": statistics.quantiles(both, n=100)[98],
        "max": max(both),
        "rest": statistics.median(times.rest),
        "look": statistics.median(times.look),
        "of target": median / target if target else 0.0,
        "of alone": median / alone_us,
    }


def table(rows: Sequence[dict[str, float]]) -> str:
    """Microseconds; the last two are ratios: 0 where there is no target."""
    lines = ["".join(f"{name:>10}" for name in rows[0])]
    lines += [
        "".join(f"{value:>10.{2 if name.startswith('of') else 0}f}" for name, value in one.items()) for one in rows
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench engine", description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS, help="measured steps of each case (default: %(default)s)")
    parser.add_argument("--running", type=int, nargs="+", default=None, help="only cases with these sizes of batch")
    parser.add_argument("--json", type=Path, default=None, help="file for the results")
    args = parser.parse_args(argv)
    alone: dict[int, float] = {}
    rows = []
    for load in LOADS:
        if args.running is not None and load.running not in args.running:
            continue
        times = measure(load, args.steps)
        alone.setdefault(load.running, statistics.median(times.both))
        rows.append(row(load, times, alone[load.running]))
    print(table(rows))
    if args.json is not None:
        args.json.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    return not all(one["of target"] <= 1.0 for one in rows)


if __name__ == "__main__":
    raise SystemExit(main())
