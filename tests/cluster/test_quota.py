"""A tenant's number of sessions, counted while many are made at once."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.quota import Quota, QuotaSpent
from tests.ingress.asgi import run


class Rooms:
    """Sessions by tenant, counted and made as slowly as one likes."""

    def __init__(self, there: int = 0) -> None:
        self.there = there
        self.most = there
        self.quota = Quota(self.count)

    async def count(self, tenant: str) -> int:
        seen = self.there
        await asyncio.sleep(0)
        return seen

    async def make(self, limit: int, pauses: int = 1, *, fails: bool = False) -> bool:
        """Whether it was let in."""
        try:
            async with self.quota.place("t", limit):
                for _ in range(pauses):
                    await asyncio.sleep(0)
                if not fails:
                    self.there += 1
                    self.most = max(self.most, self.there)
                for _ in range(pauses):
                    await asyncio.sleep(0)
        except QuotaSpent:
            return False
        return True


@given(
    limit=st.integers(1, 5),
    there=st.integers(0, 5),
    tries=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=12),
)
@settings(max_examples=100, deadline=None)
def test_of_many_at_once_as_many_are_let_in_as_there_is_room(
    limit: int, there: int, tries: list[tuple[int, bool]]
) -> None:
    """S10: never one more, and nobody is refused while there is room, or might be, since another's fails."""

    async def check() -> None:
        rooms = Rooms(there)
        let_in = await asyncio.gather(*(rooms.make(limit, pauses, fails=fails) for pauses, fails in tries))
        assert rooms.most <= max(limit, there)
        lasting = sum(not fails for _, fails in tries)
        assert rooms.there == there + min(max(0, limit - there), lasting)
        assert len(let_in) - sum(let_in) == 0 or rooms.there >= limit

    run(check(), 60.0)


def test_who_gives_up_while_waiting_takes_no_place() -> None:
    """A1: and the next in line is asked."""

    async def check() -> None:
        rooms, inside, leave = Rooms(1), asyncio.Event(), asyncio.Event()

        async def lingers() -> None:
            async with rooms.quota.place("t", 2):
                inside.set()
                await leave.wait()

        first = asyncio.ensure_future(lingers())
        await inside.wait()
        second, third = asyncio.ensure_future(rooms.make(2)), asyncio.ensure_future(rooms.make(2))
        for _ in range(5):
            await asyncio.sleep(0)
        second.cancel()
        leave.set()
        assert await third is True
        await first
        with pytest.raises(asyncio.CancelledError):
            await second
        assert rooms.there == 2

    run(check(), 60.0)


def test_tenants_do_not_wait_for_each_other() -> None:
    """S13: nor does anybody where there is no limit; and nothing is kept."""

    async def check() -> None:
        rooms = Rooms()
        async with rooms.quota.place("a", 1), rooms.quota.place("b", 1), rooms.quota.place("a", 0):
            pass
        assert not rooms.quota._places
        assert not rooms.quota._left

    run(check(), 60.0)
