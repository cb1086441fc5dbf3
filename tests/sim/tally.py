"""How often each interesting thing happened in a run: a random test that never gets there proves nothing."""

from __future__ import annotations

from collections import Counter

from actors.engine.engine import Engine
from tests.sim.cluster import SimCluster


def tally(cluster: SimCluster) -> Counter[str]:
    """Of the whole run, workers that died included."""
    counts: Counter[str] = Counter()
    for worker in cluster.workers.values():
        counts += engine_tally(worker.engine)
        for what, count in worker.ended_while.items():
            counts[f"ends while {what}"] += count
        counts.update(worker.effects.counts)
        counts["workers lost"] += not worker.alive
    counts["turns stored"] = len(cluster.store.accepted)
    counts["forks"] = cluster.store.forks
    counts["rollbacks"] = len(cluster.store.rollbacks)
    counts["runs"] = 1
    return counts


def engine_tally(engine: Engine) -> Counter[str]:
    stats = engine.snapshot()
    counts = Counter(
        {
            "steps": stats.steps,
            "requests": stats.received,
            "preemptions": stats.preemptions,
            "evicted slots": stats.evicted_slots,
            "wakes": stats.woken_turns,
            "pages saved": stats.saved_pages,
            "pages loaded": stats.loaded_pages,
            "pages missed": stats.missed_pages,
        }
    )
    for outcome, reason, _, count in stats.ends:
        counts[f"ends: {reason or outcome}"] += count
    return counts
