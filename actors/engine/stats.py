"""A read-only copy of where the engine stands."""

from __future__ import annotations

from dataclasses import dataclass

from actors.engine.core import Core
from actors.engine.hibernation import Counts
from actors.engine.kv.pages import PageCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Pages by owner, queue lengths and counters. `live_of`: live requests by ingress. `turns`: sessions with a turn
    that runs, or waits for room; `sessions_taken`: sessions taken in so far; `resident_sessions`: those whose KV is
    held. `images`: sessions that have hibernated KV. Nothing here is counted over for it: the loop waits while it is
    taken."""

    pages: PageCounts
    page_size: int
    waiting: int
    running: int
    live: int
    live_of: dict[str, int]
    turns: int
    sessions: int
    sessions_taken: int
    resident_sessions: int
    received: int
    ends: tuple[tuple[str, str, str, int], ...]
    steps: int
    prompt_tokens: int
    cached_tokens: int
    prefill_tokens: int
    recomputed_tokens: int
    output_tokens: int
    preemptions: int
    evicted_slots: int
    tombstones: int
    clocks: int
    compiling: int
    waking: int
    images: int
    saved_pages: int
    loaded_pages: int
    missed_pages: int
    woken_turns: int
    oldest_arrival: float | None = None
    """When the request that is longest in the queue arrived, on the engine's clock."""
    queue_count: int = 0
    queue_sum_s: float = 0.0
    queue_at_most: tuple[int, ...] = ()
    """Requests that had waited no longer than each of `queue_times.BOUNDS_S` when they first ran, and all of them."""
    unreturned: int = 0
    """Requests that have ended or not, whose pages are not all back."""
    paused: bool = False
    recently_ended: int = 0
    """Names of requests that ended a moment ago, kept for as long as a tombstone."""


def snapshot(core: Core, hibernated: Counts) -> EngineStats:
    totals = core.totals
    return EngineStats(
        pages=core.kv.counts,
        page_size=core.kv.page_size,
        waiting=core.requests.num_waiting,
        running=core.requests.num_running,
        live=core.requests.num_live,
        live_of=core.requests.live_of,
        turns=core.sessions.num_leased,
        sessions=len(core.sessions),
        sessions_taken=core.sessions.taken,
        resident_sessions=len(core.kv.slots),
        received=totals.received,
        ends=tuple((*key, count) for key, count in sorted(totals.ends.items())),
        steps=totals.steps,
        prompt_tokens=totals.prompt_tokens,
        cached_tokens=totals.cached_tokens,
        prefill_tokens=totals.prefill_tokens,
        recomputed_tokens=totals.recomputed_tokens,
        output_tokens=totals.output_tokens,
        preemptions=totals.preemptions,
        evicted_slots=core.kv.evicted_slots,
        tombstones=len(core.tombstones),
        clocks=len(core.clocks),
        compiling=core.requests.num_compiling,
        waking=core.requests.num_waking,
        images=len(core.images),
        saved_pages=hibernated.saved_pages,
        loaded_pages=hibernated.loaded_pages,
        missed_pages=hibernated.missed_pages,
        woken_turns=hibernated.woken_turns,
        oldest_arrival=core.requests.oldest_arrival,
        queue_count=totals.queue_times.count,
        queue_sum_s=totals.queue_times.sum_s,
        queue_at_most=totals.queue_times.at_most(),
        unreturned=len(core.requests),
        recently_ended=len(core.ended),
        paused=core.paused,
    )
