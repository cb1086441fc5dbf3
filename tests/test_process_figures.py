"""What a process says of itself in /v1/stats."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors import process

COUNTED = """
import json, sys, threading, time
from actors import process

before = process.figures()
over = threading.Event()
threads = [threading.Thread(target=over.wait) for _ in range(3)]
for thread in threads:
    thread.start()
with open(sys.argv[1], "w"):
    during = process.figures()
over.set()
for thread in threads:
    thread.join()
give_up_at = time.monotonic() + 10
while process.figures()["threads"] != before["threads"] and time.monotonic() < give_up_at:
    time.sleep(0.01)  # The kernel may show a thread for a moment after it was joined.
print(json.dumps([before, during, process.figures()]))
"""
"""In a process of its own: in the tests', others' threads may be ending."""


def test_threads_and_files_are_counted_as_they_come_and_go(tmp_path: Path) -> None:
    """A6, E6: what leaks shows."""
    script = [sys.executable, "-c", COUNTED, str(tmp_path / "open")]
    told = subprocess.run(script, check=True, capture_output=True, text=True, timeout=60)
    before, during, after = json.loads(told.stdout)
    if before["threads"] is None or before["open_files"] is None:
        pytest.skip("this system has no /proc")
    assert during["threads"] == before["threads"] + 3
    assert during["open_files"] == before["open_files"] + 1
    assert (after["threads"], after["open_files"]) == (before["threads"], before["open_files"])
    assert after["pid"] not in (0, os.getpid())
    assert after["rss_bytes"] > 10**6


def test_tasks_of_the_loops_that_are_named_are_counted() -> None:
    async def count() -> tuple[int | None, int | None]:
        task = asyncio.create_task(asyncio.sleep(60))
        named = process.figures([asyncio.get_running_loop()])["tasks"]
        task.cancel()
        return named, process.figures()["tasks"]

    assert asyncio.run(count()) == (2, 0)
