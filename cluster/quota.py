"""How many sessions a tenant may have open (rule S10), exact also while many are being opened at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from cluster.keyed_locks import KeyedLocks


class QuotaSpent(Exception):
    """The tenant has as many as it may have."""


class Quota:
    """`count(tenant)`: how many there are, by who knows. Used from one event loop.

    Whoever is let in holds a place until the session is there, or is not to be; nobody is refused for the sake of one
    that then does not come to be.
    """

    def __init__(self, count: Callable[[str], Awaitable[int]]) -> None:
        self._count = count
        self._turns = KeyedLocks()
        self._places: Counter[str] = Counter()
        self._left: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def place(self, tenant: str, limit: int) -> AsyncIterator[None]:
        """Make the session within. `limit` 0: there is none. Raises QuotaSpent, and what `count` raises."""
        if not limit:
            yield
            return
        async with self._turns.hold(tenant):
            await self._until_room(tenant, limit)
            self._places[tenant] += 1
        try:
            yield
        finally:
            self._places[tenant] -= 1
            self._places += Counter()  # Drops tenants at zero.
            if tenant in self._left:
                self._left.pop(tenant).set()

    async def _until_room(self, tenant: str, limit: int) -> None:
        """One of a tenant's at a time. A session that is made while they are counted is counted once or twice, never
        not at all: so many places were held before."""
        while True:
            held = self._places[tenant]
            there = await self._count(tenant)
            if there + held < limit:
                return
            if there >= limit or not held:
                raise QuotaSpent
            if self._places[tenant] == held:
                left = self._left[tenant] = asyncio.Event()
                await left.wait()
