"""Seeing the idle sessions of a worker off that is being drained (rule T5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum

from cluster.placement import Directory, SessionKey

AT_ONCE = 8
"""Sessions on the move at the same time."""


class Fate(Enum):
    """MOVED; BUSY: a turn runs or waits there; STAYS: nothing is to be had from moving it: it goes when it is used."""

    MOVED = "moved"
    BUSY = "busy"
    STAYS = "stays"


async def see_off(
    directory: Directory, worker_id: str, move: Callable[[SessionKey], Awaitable[Fate]], pause_s: float
) -> int:
    """Move every session of a worker, those with a turn when that is over. Returns how many moved.

    Those used last go first: they are the likeliest to be used again, and the worker's time is limited.
    """
    left, moved = list(directory.keys(worker_id)), 0
    while left:
        fates = await _all(left, move)
        moved += sum(fate is Fate.MOVED for fate in fates)
        left = [key for key, fate in zip(left, fates, strict=True) if fate is Fate.BUSY]
        if left:
            await asyncio.sleep(pause_s)
    return moved


async def _all(keys: list[SessionKey], move: Callable[[SessionKey], Awaitable[Fate]]) -> list[Fate]:
    at_once = asyncio.Semaphore(AT_ONCE)

    async def one(key: SessionKey) -> Fate:
        async with at_once:
            return await move(key)

    return await asyncio.gather(*(one(key) for key in keys))
