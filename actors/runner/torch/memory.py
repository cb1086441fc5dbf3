"""How much memory this process may still take.

Asking for more than that is no error on Linux: torch fills a new KV cache with zeros, and the kernel then kills
whatever process it likes on the node. So it has to be asked before.
"""

from __future__ import annotations

from pathlib import Path

_CGROUPS = (
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Version 2 and 1: folder, limit, use, and what of the use is cached files that the kernel drops when it must."""


def available_bytes(root: Path = Path("/")) -> int | None:
    """What the machine has left, or the container if that is less; None where neither can be read."""
    room = [_machine(root / "proc/meminfo"), *(_container(root / folder, *names) for folder, *names in _CGROUPS)]
    known = [size for size in room if size is not None]
    return min(known) if known else None


def _machine(meminfo: Path) -> int | None:
    kibibytes = _fields(meminfo).get("MemAvailable:")
    return None if kibibytes is None else kibibytes * 1024


def _container(folder: Path, limit_name: str, use_name: str, cached_name: str) -> int | None:
    """None without a limit (version 2 says `max`, version 1 a number larger than any machine)."""
    limit, use = _number(folder / limit_name), _number(folder / use_name)
    if limit is None or use is None:
        return None
    cached = _fields(folder / "memory.stat").get(cached_name, 0)
    return max(0, limit - use + cached)


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _fields(path: Path) -> dict[str, int]:
    """Lines of `name number …`."""
    words = [line.split() for line in _read(path).splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdecimal()}


def _read(path: Path) -> str:
    """Empty where there is no such file: another system, or another version of cgroups."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
