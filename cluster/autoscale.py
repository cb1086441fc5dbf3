"""How many workers there should be: pure, with time inside the record of observations (monotonic seconds).

Each look gives two numbers: how many workers the load asks for, and how many must be kept so that the load would leave
a margin. More are wanted when the first has been above the present number for `up_delay_s` on end, fewer when the
second has been below it for `down_delay_s`. What lies between changes nothing, so that a constant load cannot make
the number swing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from configs import AutoscaleConfig

QUEUED_SHARE = 0.5
"""Share of the workers that must have a queue for more of them to help: what is queued on one hot worker stays with its
sessions there (rule P3)."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One worker that is wanted. `ready` False: it is being started, and its figures mean nothing yet.

    `headroom_tokens`: KV predicted to be left when what runs has ended; may be negative. `idle_kv_tokens`: KV of
    sessions without a running turn, not part of the headroom. `oldest_wait_s`: how long the first request in its
    queue has waited.
    """

    worker_id: str
    ready: bool
    kv_tokens: int = 0
    headroom_tokens: int = 0
    idle_kv_tokens: int = 0
    running: int = 0
    waiting: int = 0
    oldest_wait_s: float = 0.0
    output_tokens_per_s: float = 0.0
    sessions: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at the cluster. `parked`: requests that wait for any worker to be ready."""

    now: float
    workers: tuple[WorkerLoad, ...]
    parked: int = 0


@dataclass(frozen=True, slots=True)
class Need:
    """Workers that something asks for, and why, for people."""

    workers: int
    why: str


@dataclass(frozen=True, slots=True)
class Sample:
    """What one look asked for. `up` ≤ `keep`."""

    at: float
    up: Need
    keep: Need


@dataclass(frozen=True, slots=True)
class Memory:
    """What a decision needs of those before it. `idle_since`: since when nothing has run or waited.
    `saturated_tokens_per_s`: what a worker made when there was last more to do than they could; 0 = not known."""

    desired: int
    samples: tuple[Sample, ...] = ()
    idle_since: float | None = None
    saturated_tokens_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    workers: int
    reason: str


def decide(memory: Memory, seen: Observation, settings: AutoscaleConfig, max_running: int) -> tuple[Memory, Decision]:
    """The number of workers there should be from now on, and what to remember until the next look.

    `max_running`: requests in one worker's batch, from which the default of `requests_per_worker` follows.
    """
    busy = bool(seen.parked) or any(one.running or one.waiting for one in seen.workers)
    starting = not all(one.ready for one in seen.workers)  # Nobody could have asked it for anything yet.
    sample = Sample(seen.now, *_needs(memory, seen, settings, max_running))
    memory = replace(
        memory,
        samples=_remember(memory.samples, sample, settings),
        idle_since=None if busy or starting else (seen.now if memory.idle_since is None else memory.idle_since),
        saturated_tokens_per_s=_capacity(memory, seen, settings, max_running),
    )
    decision = _bounded(_judge(memory, seen, busy, settings), settings)
    return replace(memory, desired=decision.workers), decision


def _judge(memory: Memory, seen: Observation, busy: bool, settings: AutoscaleConfig) -> Decision:
    desired, last = memory.desired, memory.samples[-1]
    if not desired and not busy:
        return Decision(0, "no request waits")
    if not desired:
        return Decision(max(1, last.up.workers), f"a request waits and there is no worker; {last.up.why}")
    if memory.idle_since is not None and seen.now - memory.idle_since >= settings.idle_s:
        return Decision(settings.min_workers, f"no request for {seen.now - memory.idle_since:.0f} s")
    rising = _window(memory.samples, seen.now, settings.up_delay_s)
    if rising and (least := min((one.up for one in rising), key=lambda need: need.workers)).workers > desired:
        return Decision(least.workers, f"for {settings.up_delay_s:g} s: {least.why}")
    falling = _window(memory.samples, seen.now, settings.down_delay_s)
    if falling and (most := max((one.keep for one in falling), key=lambda need: need.workers)).workers < desired:
        return Decision(most.workers, f"for {settings.down_delay_s:g} s: {most.why}")
    return Decision(desired, f"as it is: {last.up.why}; to keep: {last.keep.why}")


def _bounded(decision: Decision, settings: AutoscaleConfig) -> Decision:
    if decision.workers > settings.max_workers:
        return Decision(settings.max_workers, f"{decision.reason}; the most allowed is {settings.max_workers}")
    if decision.workers < settings.min_workers:
        return Decision(settings.min_workers, f"{decision.reason}; the least allowed is {settings.min_workers}")
    return decision


def _remember(samples: tuple[Sample, ...], sample: Sample, settings: AutoscaleConfig) -> tuple[Sample, ...]:
    """Those of the longer delay, and the last one before, which shows that the delay is covered."""
    horizon = sample.at - max(settings.up_delay_s, settings.down_delay_s)
    first = next((at for at, one in enumerate(samples) if one.at > horizon), len(samples))
    return (*samples[max(0, first - 1) :], sample)


def _window(samples: Sequence[Sample], now: float, delay_s: float) -> Sequence[Sample]:
    """What was so during the last `delay_s`, from the sample that held when they began; none when the record does not
    reach back so far."""
    first = next((at for at in range(len(samples) - 1, -1, -1) if samples[at].at <= now - delay_s), None)
    return () if first is None else samples[first:]


def _needs(memory: Memory, seen: Observation, settings: AutoscaleConfig, max_running: int) -> tuple[Need, Need]:
    """(what the load asks for, what must be kept)"""
    up = [*_targets(seen, settings, max_running, 1.0), _by_queue(seen, settings, max_running)]
    spare = 1.0 - settings.margin
    keep = [*_targets(seen, settings, max_running, spare), _by_capacity(memory, seen, spare), *up]
    return max(up, key=lambda need: need.workers), max(keep, key=lambda need: need.workers)


def _targets(seen: Observation, settings: AutoscaleConfig, max_running: int, spare: float) -> list[Need]:
    """Load over target, for each target; targets are lowered by `spare`. One worker at least, to have one to ask."""
    needs = [_by_requests(seen, settings, max_running, spare), Need(1, "one serves")]
    ready = [one for one in seen.workers if one.ready]
    capacity = sum(one.kv_tokens for one in ready)
    if capacity:
        idle = sum(one.idle_kv_tokens for one in ready)
        held = capacity - sum(one.headroom_tokens for one in ready) - idle + round(settings.idle_kv_share * idle)
        share = settings.kv_share * spare
        target = capacity / len(ready) * share
        needs.append(_over(held, target, f"{held} KV tokens at {share:.0%} of {capacity // len(ready)} per worker"))
    if settings.tokens_per_s:
        rate, target = _rate(seen), settings.tokens_per_s * spare
        needs.append(_over(rate, target, f"{rate:.0f} tokens/s at {target:g} per worker"))
    return needs


def _by_requests(seen: Observation, settings: AutoscaleConfig, max_running: int, spare: float) -> Need:
    each = _requests_each(settings, max_running) * spare
    requests = seen.parked + sum(one.running + one.waiting for one in seen.workers)
    return _over(requests, each, f"{requests} requests at {each:g} per worker")


def _requests_each(settings: AutoscaleConfig, max_running: int) -> int:
    return settings.requests_per_worker or max(1, max_running * 3 // 4)


def _over(load: float, target: float, what: str) -> Need:
    workers = math.ceil(load / target - 1e-9)
    return Need(max(0, workers), f"{what} ask for {max(0, workers)}")


def _queued(seen: Observation, longer_s: float) -> bool:
    """Whether requests have queued for longer than this, and not on a few hot workers only."""
    ready = [one for one in seen.workers if one.ready]
    late = sum(one.waiting > 0 and one.oldest_wait_s > longer_s for one in ready)
    return bool(late) and late >= QUEUED_SHARE * len(ready)


def _by_queue(seen: Observation, settings: AutoscaleConfig, max_running: int) -> Need:
    """As many more as would take what waits, one at least; at most twice as many as are ready. Those that are being
    started count, since it is an absolute number."""
    if not _queued(seen, settings.queue_s):
        return Need(0, "no queue")
    ready = [one for one in seen.workers if one.ready]
    waiting = sum(one.waiting for one in ready)
    more = min(len(ready), math.ceil(waiting / _requests_each(settings, max_running)))
    oldest = max(one.oldest_wait_s for one in ready)
    workers = len(ready) + more
    return Need(workers, f"{waiting} requests queue, the first for {oldest:.1f} s: ask for {workers}")


def _by_capacity(memory: Memory, seen: Observation, spare: float) -> Need:
    """What the present rate needs if a worker makes no more than it did when queues were too long."""
    limit = memory.saturated_tokens_per_s * spare
    if not limit:
        return Need(0, "no limit known")
    rate = _rate(seen)
    return _over(rate, limit, f"{rate:.0f} tokens/s at {limit:.0f} per worker, as seen with a queue,")


def _capacity(memory: Memory, seen: Observation, settings: AutoscaleConfig, max_running: int) -> float:
    ready = [one for one in seen.workers if one.ready]
    rate = _rate(seen)
    too_many = _by_requests(seen, settings, max_running, 1.0).workers > len(ready)
    if ready and rate and (_queued(seen, settings.queue_s) or (too_many and _queued(seen, 0.0))):
        return rate / len(ready)
    return memory.saturated_tokens_per_s


def _rate(seen: Observation) -> float:
    return sum(one.output_tokens_per_s for one in seen.workers if one.ready)
