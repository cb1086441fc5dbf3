"""A blocking store, used from an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from actors.records import SessionStore

T = TypeVar("T")


class OffloadedStore:
    """Runs what is asked of the store on threads of its own."""

    def __init__(self, store: SessionStore, threads: int = 8) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="remora-store")

    async def run(self, work: Callable[[SessionStore], T]) -> T:
        """The result of `work(store)`. Raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, self._store)

    def close(self) -> None:
        """What has begun ends by itself; nothing else begins."""
        self._threads.shutdown(wait=False, cancel_futures=True)
