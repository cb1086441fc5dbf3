"""What this process holds of the operating system, for /v1/stats: what grows there and never shrinks, leaks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

_SELF = Path("/proc/self")


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
