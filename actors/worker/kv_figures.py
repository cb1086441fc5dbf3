"""What hibernation holds and has done, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class KVFigures:
    """Written by the copying thread alone; others may read at any time.

    Now: sessions that have an image, and its pages and bytes in memory (`host`) and in files (`disk`, headers
    included). Ever: pages copied out of and into the cache; pages given up for want of room, or because they could not
    be written or read (`lost_pages`); files that were found damaged or could not be written; copies that raised.
    """

    images: int = 0
    host_pages: int = 0
    host_bytes: int = 0
    disk_pages: int = 0
    disk_bytes: int = 0
    saved_pages: int = 0
    loaded_pages: int = 0
    lost_pages: int = 0
    failed_reads: int = 0
    failed_writes: int = 0
    failed_copies: int = 0

    def count(self, pages: int, host_bytes: int, disk_bytes: int, sign: int) -> None:
        """A piece has come (`sign` 1) or gone (-1)."""
        self.host_bytes += sign * host_bytes
        self.disk_bytes += sign * disk_bytes
        if disk_bytes:
            self.disk_pages += sign * pages
        else:
            self.host_pages += sign * pages

    def row(self) -> dict[str, int]:
        return asdict(self)
