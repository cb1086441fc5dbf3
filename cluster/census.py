"""Who runs at all, as far as that can be told: the list of living workers, now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cluster.runtime import Runtime

CENSUS_S = 30.0
"""How often all living workers are listed."""
CENSUS_WAIT_S = 1.0
"""For how long one look waits for the list. What makes it may be away for long, which must not keep the pool from its
clocks."""


class Census:
    def __init__(self, runtime: Runtime, clock: Callable[[], float]) -> None:
        self._runtime = runtime
        self._clock = clock
        self._due_at = clock()
        self._listing: asyncio.Future[list[str]] | None = None

    async def look(self) -> list[str] | None:
        """Ids of all workers that run, if it is time to know and they could be listed. Raises what listing raises."""
        if self._listing is None:
            if self._clock() < self._due_at:
                return None
            self._listing = asyncio.ensure_future(self._runtime.living())
        await asyncio.wait({self._listing}, timeout=CENSUS_WAIT_S)
        if not self._listing.done():
            return None
        listing, self._listing = self._listing, None
        living = listing.result()
        self._due_at = self._clock() + CENSUS_S
        return living

    def stop(self) -> None:
        if self._listing is not None:
            self._listing.cancel()
