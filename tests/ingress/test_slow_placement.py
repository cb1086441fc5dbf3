"""A session whose first placement takes long: whoever leaves meanwhile is forgotten, and the session is unharmed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.ports import Placement
from tests.ingress.asgi import Call, eventually, run
from tests.ingress.local import Cluster, cluster


class SlowPool:
    """Lets nobody know where a session is before `go` is set; all else is the pool behind it."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.go = asyncio.Event()
        self.asked = 0

    async def open_session(self, *args: Any, **options: Any) -> Placement:
        await self._wait()
        return await self._pool.open_session(*args, **options)  # type: ignore[no-any-return]

    async def place(self, *args: Any, **options: Any) -> Placement:
        await self._wait()
        return await self._pool.place(*args, **options)  # type: ignore[no-any-return]

    async def _wait(self) -> None:
        self.asked += 1
        await self.go.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def turn(at: Cluster, text: str, **session: Any) -> Call:
    use = {"id": "s", "on_busy": "queue", **session}
    return at.client.chat(text, temperature=0, max_tokens=8, session=use)


async def leave(call: Call, how: str) -> None:
    if how == "message":
        call.disconnect()
    else:
        call.task.cancel()
    await asyncio.wait({call.task}, timeout=60)
    assert call.task.done()


@pytest.mark.parametrize("how", ["message", "cancel"])
@pytest.mark.parametrize("opened", [False, True], ids=["opened by its first turn", "opened before"])
def test_turns_left_while_their_session_is_placed_never_run(tmp_path: Path, how: str, opened: bool) -> None:
    """A1, S6, E1, E6: field case N07: the first turn runs, the five that were left do not, and the next one finds a
    history of one turn."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            if opened:
                await at.client.post("/v1/sessions", {"id": "s"})
                at.ingress.router.forget("default", "s")
            slow = SlowPool(at.pool)
            at.ingress.router.pool = slow  # type: ignore[assignment]
            first = turn(at, "first", create=not opened)
            await eventually(lambda: slow.asked == 1)
            left = [turn(at, f"left {number}", create=not opened) for number in range(5)]
            await eventually(lambda: len(at.ingress.router.running) == 6)
            for call in left:
                await leave(call, how)
            assert len(at.ingress.router.running) == 1
            slow.go.set()
            answer = (await first.whole()).json()
            after = (await turn(at, "after").whole()).json()
            begun = answer["usage"]["total_tokens"]
            assert after["usage"]["prompt_tokens"] == begun + len("\nuser: after\nassistant: ")
            assert (answer["session"]["turn"], after["session"]["turn"]) == (1, 2)
            stats = at.shell().stats()
            assert (stats["requests_received"], stats["live"]) == (2, 0)
            assert at.ingress.metrics.open_requests == 0

    run(check())


def test_a_session_opened_without_an_id_gets_one_that_is_new(tmp_path: Path) -> None:
    """S14: session case B01."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            made = [(await at.client.post("/v1/sessions")).json()["id"] for _ in range(20)]
            assert len(set(made)) == 20
            assert all(name.startswith("sess-") for name in made)
            answer = (await at.client.chat("hi", max_tokens=4, session={"id": made[7]}).whole()).json()
            assert answer["session"]["turn"] == 1
            assert (await at.client.get(f"/v1/sessions/{made[8]}")).json()["turns"] == 0

    run(check())
