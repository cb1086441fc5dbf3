"""Where requests wait while no worker is ready: one look at the pool for all of them, and who came first goes first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from actors.ingress.channel import spawn
from actors.ports import NoWorker

LOOK_S = 0.05
MAX_LOOK_S = 0.5
"""Between two looks: the longer, the longer nobody came."""


class Parking:
    """`look()` says whether a worker is ready, and asks the pool for one if not; it may raise NoWorker."""

    def __init__(self, look: Callable[[], Awaitable[bool]]) -> None:
        self._look = look
        self._opened: asyncio.Future[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._parked = 0

    def __len__(self) -> int:
        return self._parked

    async def wait(self, timeout_s: float) -> None:
        """Return when a worker is ready, in order of arrival, or when the time is over."""
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            self._looking = spawn(self._look_out(self._opened))
        self._parked += 1
        try:
            await asyncio.wait({self._opened}, timeout=timeout_s)
        finally:
            self._parked -= 1

    async def stop(self) -> None:
        """Look no more. Whoever still waits waits for its time."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look_out(self, opened: asyncio.Future[None]) -> None:
        """As long as anybody waits."""
        pause_s = LOOK_S
        try:
            while True:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 1.5, MAX_LOOK_S)
                if not self._parked or await self._ready():
                    return
        finally:
            self._opened = None
            opened.set_result(None)

    async def _ready(self) -> bool:
        try:
            return await self._look()
        except NoWorker:
            return False
