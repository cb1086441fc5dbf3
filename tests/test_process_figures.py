"""What a process says of itself in /v1/stats."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from actors import process


def test_threads_and_files_are_counted_as_they_come_and_go(tmp_path: Path) -> None:
    """A6, E6: what leaks shows."""
    before = process.figures()
    if before["threads"] is None or before["open_files"] is None:
        pytest.skip("this system has no /proc")
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    with (tmp_path / "open").open("w"):
        during = process.figures()
    over.set()
    for thread in threads:
        thread.join()
    after = process.figures()
    assert during["threads"] == before["threads"] + 3
    assert during["open_files"] == before["open_files"] + 1
    assert (after["threads"], after["open_files"]) == (before["threads"], before["open_files"])
    assert after["pid"] == os.getpid()
    assert (after["rss_bytes"] or 0) > 10**6


def test_tasks_of_the_loops_that_are_named_are_counted() -> None:
    async def count() -> tuple[int | None, int | None]:
        task = asyncio.create_task(asyncio.sleep(60))
        named = process.figures([asyncio.get_running_loop()])["tasks"]
        task.cancel()
        return named, process.figures()["tasks"]

    assert asyncio.run(count()) == (2, 0)
