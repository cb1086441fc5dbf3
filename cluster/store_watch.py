"""The store's figures for /v1/stats, without ever waiting long for a store that does not answer."""

from __future__ import annotations

import asyncio

from actors.records import StoreError
from cluster.store.offload import OffloadedStore


class StoreWatch:
    """Asks one question at a time: a store that is away for a while must not have all threads wait for it."""

    def __init__(self, store: OffloadedStore) -> None:
        self._store = store
        self._asking: asyncio.Future[dict[str, object]] | None = None
        self._known: dict[str, object] = {}

    async def figures(self, within_s: float) -> dict[str, object]:
        """Those of now, or the last ones known and why there are no newer."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._store.run(lambda store: store.figures()))
        asking = self._asking
        await asyncio.wait({asking}, timeout=within_s)
        if not asking.done():
            return {**self._known, "error": "the store does not answer"}
        if self._asking is asking:
            self._asking = None
        try:
            self._known = asking.result()
        except StoreError as error:
            return {**self._known, "error": str(error)}
        return self._known
