"""The pool is away, and this ingress has not placed the session before: whoever has it says so."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.ingress import finding
from actors.messages import GetSession, SessionInfo
from actors.ports import PoolAway
from tests.ingress.asgi import Call, run
from tests.ingress.local import Cluster, LocalWorker, cluster


class AwayPool:
    """Places nobody: it hangs, or says that it is away. All else is the pool behind it."""

    def __init__(self, pool: Any, *, hangs: bool) -> None:
        self._pool = pool
        self._hangs = hangs
        self.back = asyncio.Event()

    async def place(self, *args: Any, **options: Any) -> Any:
        if not self.back.is_set() and not self._hangs:
            raise PoolAway("it starts anew")
        await self.back.wait()
        return await self._pool.place(*args, **options)

    async def members(self) -> Any:
        if not self.back.is_set():
            raise PoolAway("it starts anew")
        return await self._pool.members()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "SOON_S", 0.05)


def turn(at: Cluster, text: str) -> Call:
    return at.client.chat(text, temperature=0, max_tokens=8, session={"id": "s"})


async def opened(at: Cluster, *, hangs: bool = True) -> tuple[AwayPool, dict[str, Any]]:
    """A session with a turn, of which this ingress has then lost sight, as another replica would; the pool is gone."""
    await at.client.post("/v1/sessions", {"id": "s"})
    first = (await turn(at, "one").whole()).json()
    await at.ingress.router.members(fresh=True)
    at.ingress.router.forget("default", "s")
    away = AwayPool(at.pool, hangs=hangs)
    at.ingress.router.pool = away  # type: ignore[assignment]
    return away, first


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "says so"])
def test_a_placed_session_goes_on_through_an_ingress_that_has_not_placed_it(tmp_path: Path, hangs: bool) -> None:
    """T6, P1, field case N48: with its whole history, where it is, under the same epoch."""

    async def check() -> None:
        async with cluster(tmp_path, workers=3) as at:
            _, first = await opened(at, hangs=hangs)
            second = (await turn(at, "two").whole()).json()
            assert second["session"] == {**first["session"], "turn": 2}
            begun = first["usage"]["total_tokens"]
            assert second["usage"]["prompt_tokens"] == begun + len("\nuser: two\nassistant: ")
            assert at.pool.store.get("default", "s").epoch == 1

    run(check())


def test_what_no_worker_has_waits_for_the_pool(tmp_path: Path) -> None:
    """T6: it is not taken for an empty session."""

    async def check() -> None:
        async with cluster(tmp_path, workers=2) as at:
            away, first = await opened(at)
            owner = at.pool.workers[first["session"]["worker"]]
            owner.kill()
            waiting = turn(at, "two")
            await asyncio.sleep(0.3)
            assert not waiting.task.done()
            away.back.set()
            second = (await waiting.whole()).json()
            assert second["session"]["turn"] == 2
            assert second["session"]["worker"] != first["session"]["worker"]

    run(check())


def test_of_two_workers_that_claim_a_session_the_later_owner_is_asked(tmp_path: Path, monkeypatch: Any) -> None:
    """T3: one was given up and does not know it. (Were it asked, the store would refuse its commit.)"""

    async def check() -> None:
        async with cluster(tmp_path, workers=2) as at:
            _, first = await opened(at)
            owner = first["session"]["worker"]
            ask = LocalWorker.ask

            async def claims(worker: LocalWorker, message: Any) -> object:
                told = await ask(worker, message)
                if not isinstance(message, GetSession) or told is not None:
                    return told
                real = await ask(at.pool.workers[owner], message)
                assert isinstance(real, SessionInfo)
                return replace(real, epoch=real.epoch - 1)

            monkeypatch.setattr(LocalWorker, "ask", claims)
            second = (await turn(at, "two").whole()).json()
            assert second["session"]["worker"] == owner
            assert second["session"]["turn"] == 2

    run(check())
