"""Asking the store: for so long, again while it is away, and never past a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from actors.ingress import storing
from actors.ingress.responses.live import set_within
from actors.ingress.storing import in_time, renewed, stubbornly
from actors.records import StoreError, StoreFull
from tests.ingress.asgi import eventually, run


def test_a_pool_that_says_nothing_is_a_store_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """N48."""
    monkeypatch.setattr(storing, "ANSWER_S", 0.01)

    async def check() -> None:
        asked = asyncio.get_running_loop().create_future()
        with pytest.raises(StoreError):
            await in_time(asked)
        assert asked.cancelled()

    run(check())


async def cut_as_it_answers(work: Awaitable[object], answer: Callable[[], object]) -> None:
    """Cancel work in the very moment in which what it waits for comes."""
    task = asyncio.ensure_future(work)
    for _ in range(3):
        await asyncio.sleep(0)
    answer()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancellation_that_meets_the_answer_is_not_lost() -> None:
    """A1: `asyncio.wait_for` loses it before Python 3.12, and the request of a client that has left goes on."""

    async def check() -> None:
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        await cut_as_it_answers(in_time(asked), lambda: asked.set_result(1))
        event = asyncio.Event()
        await cut_as_it_answers(set_within(event, 10.0), event.set)

    run(check())


def test_a_claim_is_not_renewed_once_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """T2: however the two meet; else its key would never be free again."""
    monkeypatch.setattr(storing, "RENEW_S", 0.0)

    async def check() -> None:
        claims: list[asyncio.Future[None]] = []

        def claim() -> Awaitable[None]:
            claims.append(asyncio.get_running_loop().create_future())
            return claims[-1]

        renewing = asyncio.ensure_future(renewed(claim, "a claim"))
        await eventually(lambda: claims)
        claims[0].set_exception(StoreError("away"))
        await eventually(lambda: len(claims) == 2)
        await asyncio.sleep(0)
        claims[1].set_result(None)
        renewing.cancel()
        await asyncio.wait({renewing}, timeout=1.0)
        assert renewing.cancelled()
        assert len(claims) == 2

    run(check())


@pytest.mark.parametrize(("failure", "tries"), [(StoreError("away"), 3), (StoreFull("no room"), 1)])
def test_it_is_offered_until_it_is_stored_or_cannot_be(
    monkeypatch: pytest.MonkeyPatch, failure: StoreError, tries: int
) -> None:
    """T2."""
    monkeypatch.setattr(storing, "STORE_PAUSE_S", 0.0)

    async def check() -> None:
        tried = []

        async def put() -> None:
            tried.append(1)
            if len(tried) < 3:
                raise failure

        await stubbornly(put, "not kept")
        assert len(tried) == tries

    run(check())
