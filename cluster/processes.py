"""Finding and ending the processes that one of ours has started, whoever their parents are by now (Linux)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

PROC = Path("/proc")
TERM_S = 2.0
LOOK_S = 0.05


def using(folder: Path) -> list[int]:
    """Ids of the living processes, but ours, that have a file of this folder open or name it in their command line.

    All of Ray's do: their logs and sockets lie there. (Their environment would tell less: some overwrite it.)
    """
    return [
        int(entry.name)
        for entry in PROC.glob("[0-9]*")
        if int(entry.name) != os.getpid() and (_names(entry, folder) or _has_open(entry, folder))
    ]


def end_users(folder: Path, grace_s: float = TERM_S) -> None:
    """Ask the processes that use a folder to end, then make them."""
    give_up_at = time.monotonic() + grace_s
    _signal_all(using(folder), signal.SIGTERM)
    while (left := using(folder)) and time.monotonic() < give_up_at:
        time.sleep(LOOK_S)
    _signal_all(left, signal.SIGKILL)


def _names(process: Path, folder: Path) -> bool:
    with contextlib.suppress(OSError):  # It has ended.
        return f"{folder}/".encode() in (process / "cmdline").read_bytes()
    return False


def _has_open(process: Path, folder: Path) -> bool:
    with contextlib.suppress(OSError):  # It has ended, or is somebody else's.
        return any(_target(link).startswith(f"{folder}/") for link in (process / "fd").iterdir())
    return False


def _target(link: Path) -> str:
    with contextlib.suppress(OSError):  # Closed meanwhile.
        return os.readlink(link)
    return ""


def _signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # It has ended by itself.
            os.kill(pid, number)
