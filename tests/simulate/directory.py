"""What the session directory costs at size: bytes per session, and time per call."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from statistics import median

from cluster.placement import Directory
from tests.simulate.policies import new_record


def filled(make: Callable[[], Directory], count: int, workers: int = 1_000) -> Directory:
    """`count` sessions, spread over `workers`; ids as long as UUIDs. Each record's strings are its own, as they are
    when they come from the store."""
    directory = make()
    for number in range(count):
        directory.put(
            new_record(("tenant-" + str(number % 7), f"{number:036d}"), f"worker-{number % workers:08x}", number)
        )
    return directory


def bytes_per_session(make: Callable[[], Directory], count: int) -> float:
    """Everything the directory keeps alive, keys included."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        directory = filled(make, count)
        after, _ = tracemalloc.get_traced_memory()
        assert len(directory) == count
        return (after - before) / count
    finally:
        tracemalloc.stop()


def time_of(call: Callable[[], object], repeats: int = 5) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return median(times)
