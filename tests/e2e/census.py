"""All that a running server says it holds: /v1/stats, /metrics, and what /proc says of its processes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.raw_http import RawClient

End = tuple[str, str, str]
"""(outcome, reason, stage)."""

_LABELS = r'outcome="(\w*)",reason="(\w*)",stage="(\w*)"'
_ENDED = re.compile(rf"^remora_requests_ended_total\{{{_LABELS}\}} (\S+)$", re.MULTILINE)
_PLAIN = re.compile(r"^remora_requests_(received_total|in_flight) (\S+)$", re.MULTILINE)
_WORKER_GAUGES = ("waiting", "compiling", "running", "live", "sessions", "resident_sessions", "owned_sessions")
_WORKER_COUNTERS = ("steps", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions", "evicted_slots")
_IDLE = ("waiting", "compiling", "running", "live", "request-owned pages", "unreturned", "mail", "storing", "grammars",
         "events", "asks", "open requests", "in flight", "lines", "held sessions")  # fmt: skip
"""What is zero whenever nobody wants anything."""


@dataclass
class Census:
    """`held[owner][what]`: what must come back. `counted[owner][what]`: what only grows. `received` and `ends` by
    owner: the ingress and each worker."""

    held: dict[str, dict[str, int]] = field(default_factory=dict)
    counted: dict[str, dict[str, int]] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    ends: dict[str, Counter[End]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    """Laws that do not even hold within this census (rule K6)."""

    def unrest(self) -> list[str]:
        """What is not as it must be when nobody wants anything (rules E6, K6)."""
        wrong = [
            f"{owner}: {what} {count}"
            for owner, held in self.held.items()
            for what, count in held.items()
            if what in _IDLE and count
        ]
        for owner, received in self.received.items():
            if received != self.ends[owner].total():
                wrong.append(f"{owner}: {received} received, {self.ends[owner].total()} ended")
        return wrong + self.broken

    def closed(self) -> list[str]:
        """What is wrong once every session is closed (rules S9, K6)."""
        names = ("sessions", "resident sessions", "owned sessions", "session-held pages", "turns")
        return [
            f"{owner}: {what} {count} with every session closed"
            for owner, held in self.held.items()
            for what, count in held.items()
            if what in names and count
        ]


async def take(client: RawClient, root_pid: int | None = None) -> Census:
    """`root_pid`: the server's process on this machine; its descendants are counted too."""
    stats = (await client.call("GET", "/v1/stats")).tree
    metrics = (await client.call("GET", "/metrics")).body.decode()
    census = Census()
    _add_ingress(census, stats["ingress"], metrics)
    for row in stats["workers"]:
        if "pages" in row:
            _add_worker(census, row)
    pool, store = stats["pool"], stats["store"]
    census.held["pool"] = {"sessions": pool["sessions"], "held sessions": pool["held_sessions"], **_process(pool)}
    sizes = {what.replace("_", " "): count for what, count in store.items() if type(count) is int}
    census.held["store"] = sizes | _process(store)
    if root_pid is not None:
        told = {stats["ingress"]["process"]["pid"], pool["process"]["pid"], store["process"]["pid"]}
        told |= {row["pid"] for row in stats["workers"] if "pid" in row}
        for name, held in processes(root_pid, told).items():
            census.held[name] = held
    return census


def _add_ingress(census: Census, row: Mapping[str, Any], metrics: str) -> None:
    plain = {name: int(float(value)) for name, value in _PLAIN.findall(metrics)}
    census.held["ingress"] = {
        "open requests": row["open_requests"],
        "in flight": plain["in_flight"],
        "running": row["running"],
        "lines": sum(row["lines"].values()),
        "cached placements": row["cached_placements"],
        **_process(row),
    }
    census.received["ingress"] = plain["received_total"]
    census.ends["ingress"] = Counter(
        {(outcome, reason, stage): int(float(n)) for outcome, reason, stage, n in _ENDED.findall(metrics)}
    )


def _add_worker(census: Census, row: Mapping[str, Any]) -> None:
    name, pages = row["id"], row["pages"]
    held = {
        "free or prefix pages": pages["free"] + pages["prefix_only"],
        "session-held pages": pages["session_held"],
        "request-owned pages": pages["request_owned"],
    }
    held |= {what.replace("_", " "): row[what] for what in _WORKER_GAUGES}
    held |= {what.replace("_", " "): count for what, count in row["tables"].items()}
    census.held[name] = held | _process(row)
    census.counted[name] = {what.replace("_", " "): row[what] for what in _WORKER_COUNTERS}
    census.received[name] = row["requests_received"]
    census.ends[name] = Counter({(e["outcome"], e["reason"], e["stage"]): e["count"] for e in row["ends"]})
    if sum(pages.values()) != 2 * pages["total"]:
        census.broken.append(f"{name}: pages do not add up {pages}")


def _process(row: Mapping[str, Any]) -> dict[str, int]:
    names = {"tasks": "tasks", "threads": "threads", "open_files": "open files", "rss_bytes": "resident bytes"}
    process = row.get("process", {})
    return {shown: process[name] for name, shown in names.items() if process.get(name) is not None}


# -- /proc -------------------------------------------------------------------------------------------------------------


def processes(root_pid: int, but: set[int]) -> dict[str, dict[str, int]]:
    """Threads, open files and resident bytes of the living descendants of a process, those of one name together."""
    found: dict[str, dict[str, int]] = {}
    for pid in descendants(root_pid):
        if pid in but:
            continue
        try:
            name, figures = _name(pid), _figures(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # It has ended meanwhile.
        held = found.setdefault(name, dict.fromkeys(figures, 0))
        for what, count in figures.items():
            held[what] += count
    return found


def descendants(root_pid: int) -> Iterator[int]:
    parents = {int(entry.name): parent_of(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")}
    for pid in sorted(parents):
        above = pid
        while above in parents and above != root_pid:
            above = parents[above]
        if above == root_pid:
            yield pid


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0  # It has ended meanwhile.


def _name(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    if words[0].startswith("ray::"):
        return words[0].split(" ")[0].split(".")[0]
    if "-m" in words:
        return words[words.index("-m") + 1]
    scripts = [word for word in words[1:] if word.endswith(".py")]
    return Path(scripts[0]).name if scripts else Path(words[0]).name


def _figures(pid: int) -> dict[str, int]:
    folder = Path(f"/proc/{pid}")
    pages = int((folder / "statm").read_text().split()[1])
    return {
        "processes": 1,
        "threads": len(list((folder / "task").iterdir())),
        "open files": len(list((folder / "fd").iterdir())),
        "resident bytes": pages * 4096,
    }
