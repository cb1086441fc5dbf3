"""When the processes below one of ours appear, and what Ray says they do: their titles, as `ps` shows them (Linux)."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
LOOK_S = 0.03
BUILDING = ".__init__"
"""How Ray ends the title of an actor whose constructor runs."""


@dataclass(slots=True)
class Seen:
    """Seconds of the monotonic clock. `begun`: when the system started the process; `titles`: when each was seen
    first."""

    begun: float
    titles: dict[str, float] = field(default_factory=dict)

    def first(self, part: str) -> float | None:
        """When a title with this in it was seen first."""
        return next((at for title, at in self.titles.items() if part in title), None)

    def built(self, part: str) -> float | None:
        """When the actor of that title had been constructed: a later title, of the actor itself or of a call."""
        built = (at for title, at in self.titles.items() if part in title and not title.endswith(BUILDING))
        return next(built, None)


class ProcessWatch:
    """A context manager: looks at all descendants of `root` as long as it lasts."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process-watch", daemon=True)
        self.seen: dict[int, Seen] = {}

    def __enter__(self) -> ProcessWatch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        family = {self._root}
        strangers: set[int] = set()
        while not self._ended.wait(LOOK_S):
            now = time.monotonic()
            for pid in sorted(int(name) for name in os.listdir(PROC) if name.isdigit()):
                if pid not in family and pid not in strangers:
                    parent, begun = _origin(pid)
                    (family if parent in family else strangers).add(pid)
                    if parent in family:
                        self.seen[pid] = Seen(begun)
                if pid in self.seen and (title := _title(pid)):
                    self.seen[pid].titles.setdefault(title, now)


def pss_bytes(pid: int) -> int:
    """A process's share of the memory: what it shares with others counts by equal parts. Raises OSError."""
    for line in (PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the system does not say the memory of {pid}")


def _origin(pid: int) -> tuple[int, float]:
    """(its parent, when it was started); (0, 0) for one that has ended."""
    try:
        after_name = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0, 0.0
    since_boot = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    return int(after_name[1]), since_boot + time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _title(pid: int) -> str:
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return " ".join(word.decode(errors="replace") for word in words if word)
