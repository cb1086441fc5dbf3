"""Holds one thread of a process, as a call that never returns would; the others run on.

For Linux, where tracing is allowed.

python -m tests.e2e.hold_thread THREAD      prints `held`, and lets go when it is ended

The thread is stopped in a sleep or at a lock, so that it is not the one that holds Python's global lock.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

SEIZE, INTERRUPT, CONT = 0x4206, 0x4207, 7
WALL = 0x40000000
WAITING = {
    "x86_64": {35, 202, 230},  # nanosleep, futex, clock_nanosleep
    "aarch64": {98, 101, 115},
}
TRIES = 500


class Refused(Exception):
    """The system does not let this process trace that one."""


class Held:
    """A thread that is held until `release`, or until its process is killed. Raises Refused."""

    def __init__(self, thread: int) -> None:
        self._helper = subprocess.Popen(
            [sys.executable, "-m", __name__, str(thread)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._helper.stdout is not None
        assert self._helper.stderr is not None
        if self._helper.stdout.readline() != "held\n":
            self._helper.wait()
            raise Refused(self._helper.stderr.read().strip())

    def release(self) -> None:
        self._helper.kill()
        self._helper.wait()


def _trace(request: int, thread: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(ctypes.c_long(request), ctypes.c_long(thread), ctypes.c_long(0), ctypes.c_long(0)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _waits(thread: int) -> bool:
    """Whether the stopped thread is in a call that waits."""
    words = Path(f"/proc/{thread}/syscall").read_text().split()
    return words[0].isdigit() and int(words[0]) in WAITING[platform.machine()]


def _hold(thread: int) -> None:
    """Returns when the thread has ended."""
    _trace(SEIZE, thread)
    for _ in range(TRIES):
        _trace(INTERRUPT, thread)
        os.waitpid(thread, WALL)
        if _waits(thread):
            print("held", flush=True)
            os.waitpid(thread, WALL)
            return
        _trace(CONT, thread)
        time.sleep(0.003)
    raise TimeoutError(f"thread {thread} never waits")


if __name__ == "__main__":
    try:
        _hold(int(sys.argv[1]))
    except (OSError, KeyError) as error:
        raise SystemExit(repr(error)) from None
