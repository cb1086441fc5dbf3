"""A process of ours as a whole: what it holds of the operating system, for /v1/stats (what grows there and never
shrinks, leaks), and how its garbage is collected."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterable
from pathlib import Path

_SELF = Path("/proc/self")
_YOUNG = 20_000
"""Objects made since the last collection that make another one due: a step of a large batch makes thousands, and
releases them all."""


def settle_garbage() -> None:
    """Call when everything is built that stays. The collector then looks no more at what there is, which are hundreds
    of thousands of objects of the libraries, and looks less often: else it stops each of the steps now and then for
    tens of milliseconds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


def figures(loops: Iterable[asyncio.AbstractEventLoop] = ()) -> dict[str, int | None]:
    """Threads (native ones too), open file descriptors, resident bytes, and the asyncio tasks of `loops`.

    None for what this system does not tell: it is read from /proc.
    """
    return {
        "pid": os.getpid(),
        "tasks": sum(len(asyncio.all_tasks(loop)) for loop in loops),
        "threads": _entries("task"),
        "open_files": _entries("fd"),
        "rss_bytes": _resident_bytes(),
    }


def _entries(name: str) -> int | None:
    try:
        return len(os.listdir(_SELF / name))
    except FileNotFoundError:
        return None


def _resident_bytes() -> int | None:
    try:
        pages = int((_SELF / "statm").read_text(encoding="ascii").split()[1])
    except FileNotFoundError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
