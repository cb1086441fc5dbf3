"""What the session directory costs at size: bytes per session, and time per call."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace

from cluster.placement import Directory
from tests.simulate.policies import new_record

CALLS = 20_000


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


def look_up(directory: Directory, calls: int = CALLS) -> Callable[[], None]:
    """`calls` lookups, spread over all sessions: what a turn costs."""
    count = len(directory)
    keys = [(f"tenant-{number % 7}", f"{number:036d}") for number in range(0, count, max(1, count // calls))][:calls]
    keys *= max(1, calls // len(keys))

    def run() -> None:
        for key in keys:
            assert directory.get(key) is not None

    return run


def change(directory: Directory, workers: int, calls: int = 100) -> Callable[[], None]:
    """`calls` sessions of the first worker are closed, opened and change hands."""
    records = [
        new_record((f"tenant-{number % 7}", f"{number:036d}"), f"worker-{0:08x}", number)
        for number in range(0, calls * workers, workers)
    ]

    def run() -> None:
        for record in records:
            directory.remove((record.tenant, record.session_id), record.generation)
            directory.put(record)
            directory.put(replace(record, owner="worker-other", epoch=2))
            directory.remove((record.tenant, record.session_id), record.generation)
            directory.put(record)

    return run


def costs(counts: Sequence[int], workers: int = 1_000) -> list[tuple[str, ...]]:
    """A table: microseconds per call and bytes, by number of sessions."""
    rows: list[tuple[str, ...]] = [("sessions", "look up", "change hands", "worker gone, per session", "memory")]
    for count in counts:
        memory = bytes_per_session(Directory, count)
        directory = filled(Directory, count, workers)
        look = fastest(look_up(directory)) / CALLS
        hands = fastest(change(directory, workers, max(1, count // workers // 2))) / max(1, count // workers // 2)
        began, owned = time.process_time(), directory.count("worker-00000001")
        directory.remove_worker("worker-00000001")
        gone = (time.process_time() - began) / owned
        times = (f"{seconds * 1e6:.2f} us" for seconds in (look, hands, gone))
        rows.append((f"{count:,}", *times, f"{memory:.0f} B each, {memory * count / 2**20:.0f} MiB"))
    return rows


def fastest(call: Callable[[], object], repeats: int = 5) -> float:
    """CPU seconds of the fastest of some calls: other processes make a call slower, never faster."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return min(times)
