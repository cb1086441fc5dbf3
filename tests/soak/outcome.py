"""What a soak run comes to, and a line now and then that it goes on."""

from __future__ import annotations

import time
from collections import Counter

Soaked = tuple[Counter[str], list[tuple[str, Exception]]]
"""How often what happened; and failures, each with the command that repeats it."""

REPORT_S = 60.0


def say_progress(since: float, text: str) -> float:
    """Say it if the last time was long ago. Returns when the last time was."""
    now = time.monotonic()
    if now - since < REPORT_S:
        return since
    print(f"... {text}", flush=True)
    return now
