"""What a client is told of a session whose weights are no longer served."""

from __future__ import annotations

from typing import Any

import pytest

from actors.ports import WeightsGone
from tests.ingress.asgi import run
from tests.ingress.harness import edge
from tests.ingress.scripted import says


async def gone(*args: Any, **options: Any) -> Any:
    raise WeightsGone("4e83516833cd")


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_is_refused_at_once_with_the_weights_that_it_needs(stream: bool) -> None:
    """T6, E4: 409, not to be repeated; it waits for no worker, and counts as one end."""

    async def check() -> None:
        async with edge(says("x")) as at:
            await at.client.post("/v1/sessions", {"id": "s"})
            at.ingress.router.forget("default", "s")
            at.pool.place = gone  # type: ignore[method-assign]
            call = await at.client.chat("hi", session={"id": "s"}, stream=stream).whole()
            error = call.json()["error"]
            assert (call.status, error["code"], error["reason"]) == (409, "weights_gone", "invalid")
            assert (error["param"], error["stage"], error["retryable"]) == ("session.id", "routing", False)
            assert "4e83516833cd" in error["message"]
            assert call.headers["x-should-retry"] == "false"
            assert at.worker.submits == []
            assert at.ends() == {("abort", "invalid", "routing"): 1}

    run(check())


@pytest.mark.parametrize("verb", ["fork", "rollback"])
def test_so_are_forks_and_rollbacks(verb: str) -> None:
    async def check() -> None:
        async with edge() as at:
            await at.client.post("/v1/sessions", {"id": "s"})
            at.pool.fork_session = at.pool.rollback_session = gone  # type: ignore[method-assign]
            call = await at.client.post(f"/v1/sessions/s/{verb}", {"id": "copy", "turn": "r1"})
            assert (call.status, call.json()["error"]["code"]) == (409, "weights_gone")

    run(check())
