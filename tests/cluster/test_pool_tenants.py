"""Sessions per tenant, where a tenant has a number of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.messages import SessionMode
from actors.ports import Placement, SessionLimit
from configs import SessionConfig
from tests.cluster.test_pool import World, run


async def open_for(w: World, tenant: str, session_id: str, most: int | None) -> Placement:
    options: dict[str, Any] = {"mode": SessionMode.TREE, "idle_timeout_s": None, "capacity_tokens": None}
    return await w.pool.open_session(tenant, session_id, **options, max_sessions=most)


def test_a_tenants_own_number_takes_the_place_of_the_configured_one(tmp_path: Path) -> None:
    """S10: be it more or less; others keep theirs."""

    async def test(w: World) -> None:
        await w.until_ready(2)
        for number in range(3):
            await open_for(w, "large", f"s{number}", 3)
        with pytest.raises(SessionLimit, match="tenant has 3"):
            await open_for(w, "large", "more", 3)
        await open_for(w, "small", "s0", 1)
        with pytest.raises(SessionLimit, match="tenant has 1"):
            await open_for(w, "small", "more", 1)
        await open_for(w, "other", "s0", None)
        await open_for(w, "other", "s1", None)
        with pytest.raises(SessionLimit, match="tenant has 2"):
            await open_for(w, "other", "more", None)

    run(test, tmp_path, sessions=SessionConfig(max_per_tenant=2))


def test_a_fork_counts_against_the_tenants_own_number(tmp_path: Path) -> None:
    """S10, S12."""

    async def test(w: World) -> None:
        await w.until_ready(2)
        await w.turn(await open_for(w, "t", "s", 2), "r1")
        await w.pool.fork_session("t", "fork", source_id="s", turn=None, max_sessions=2)
        with pytest.raises(SessionLimit, match="tenant has 2"):
            await w.pool.fork_session("t", "another", source_id="s", turn=None, max_sessions=2)

    run(test, tmp_path)
