"""How often each interesting thing happened in a run: a random test that never gets there proves nothing."""

from __future__ import annotations

from collections import Counter

from tests.sim.cluster import SimCluster


def tally(cluster: SimCluster) -> Counter[str]:
    """Of the whole run, workers that died included."""
    counts: Counter[str] = Counter()
    for worker in cluster.workers.values():
        stats = worker.engine.snapshot()
        counts["steps"] += stats.steps
        counts["preemptions"] += stats.preemptions
        counts["evicted slots"] += stats.evicted_slots
        counts["wakes"] += stats.woken_turns
        counts["pages saved"] += stats.saved_pages
        counts["pages loaded"] += stats.loaded_pages
        counts["pages missed"] += stats.missed_pages
        counts["requests"] += stats.received
        for outcome, reason, _, count in stats.ends:
            counts[f"ends: {reason or outcome}"] += count
        for what, count in worker.ended_while.items():
            counts[f"ends while {what}"] += count
        counts.update(worker.effects.counts)
        counts["workers lost"] += not worker.alive
    counts["turns stored"] = len(cluster.store.accepted)
    counts["forks"] = cluster.store.forks
    counts["rollbacks"] = len(cluster.store.rollbacks)
    counts["runs"] = 1
    return counts
