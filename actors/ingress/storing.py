"""Asking the session store by way of the pool: either may be away for a while, and what has to be kept is offered until
it is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from actors.ingress.errors import ApiError
from actors.records import StoreError, StoreFull

log = logging.getLogger(__name__)

T = TypeVar("T")

ANSWER_S = 10.0
"""How long the pool may take to answer."""
STORE_WAIT_S = 1.0
"""How long an answer waits for what is to be stored; where the pool or its store is away, that goes on behind it."""
STORE_TRIES_S = 15.0
"""How long something is offered to a store that fails: as long as a claim surely holds."""
STORE_PAUSE_S = 0.25
RENEW_S = 5.0
"""How often a claim is renewed; the pool lets it lapse after some times that."""


async def in_time(answer: Awaitable[T]) -> T:
    """Raises StoreError also when the pool says nothing: while it restarts, calls to it wait for ever.

    A cancellation that meets the answer is a cancellation (`wait_for` may lose it before Python 3.12)."""
    asked = asyncio.ensure_future(answer)
    try:
        await asyncio.wait({asked}, timeout=ANSWER_S)
        if asked.done():
            return asked.result()
        raise StoreError("the pool does not answer")
    finally:
        if not asked.cancel() and not asked.cancelled():
            asked.exception()  # Else asyncio says that nobody looked at it.


async def stubbornly(work: Callable[[], Awaitable[None]], failure: str) -> None:
    """Until it is done, or cannot be: a pool that is being replaced is back within seconds. `failure`: for the log."""
    give_up_at = time.monotonic() + STORE_TRIES_S
    while True:
        try:
            await work()
            return
        except (StoreError, ApiError) as error:
            if isinstance(error, (StoreFull, ApiError)) or time.monotonic() > give_up_at:
                log.error("%s: %s", failure, error)
                return
        await asyncio.sleep(STORE_PAUSE_S)


async def renewed(claim: Callable[[], Awaitable[object]], what: str) -> None:
    """Claim it again and again, until this is cancelled. `what`: for the log."""
    while True:
        await asyncio.sleep(RENEW_S)
        try:
            await in_time(claim())
        except StoreError as error:
            log.warning("%s could not be renewed: %s", what, error)
