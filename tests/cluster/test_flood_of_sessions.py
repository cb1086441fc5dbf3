"""One tenant floods the cluster with session ids; another one works beside it. Everything but Ray is real."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from configs import SessionConfig, TenantLimits
from tests.cluster.edge import Whole, whole
from tests.ingress.asgi import Call, run
from tests.ingress.keyed import ACME, GLOBEX, Keyed, keys

FLOOD, AT_ONCE, LIMIT = 3000, 100, 20
IDLE_S = 3.0


def turn(client: Keyed, session_id: str, **session: Any) -> Call:
    return client.chat("hello", max_tokens=2, temperature=0, session={"id": session_id, **session})


async def flood(client: Keyed) -> Counter[tuple[int, str]]:
    """Ever other ids: opened, opened with a first turn, taken for known. (status, reason) → how often."""
    seen: Counter[tuple[int, str]] = Counter()

    def ask(number: int) -> Call:
        name = f"flood-{number:032d}"
        if number % 3 == 0:
            return client.start("POST", "/v1/sessions", {"id": name})
        return turn(client, name, create=True) if number % 3 == 1 else turn(client, name)

    for first in range(0, FLOOD, AT_ONCE):
        calls = await asyncio.gather(*(ask(number).whole() for number in range(first, first + AT_ONCE)))
        for call in calls:
            seen[call.status, call.json()["error"]["reason"] if call.status >= 400 else ""] += 1
    return seen


async def works(client: Keyed) -> list[str]:
    """Ten sessions are opened, and the old one is used ten times. The workers that had the old one's turns."""
    owners = []
    for number in range(10):
        opened = await turn(client, f"new-{number}", create=True).whole()
        assert opened.status == 200, opened.body
        old = await turn(client, "old").whole()
        assert old.status == 200, old.body
        assert old.json()["session"]["turn"] == number + 2
        owners.append(old.json()["session"]["worker"])
    return owners


def test_a_flood_of_ids_is_its_own_tenants_trouble(tmp_path: Path) -> None:
    """S10, S13, field case N20: it meets its tenant's limit, by name; the other's sessions open, and its old one keeps
    owner and history; what is remembered is of sessions that were open; an idle timeout later they are gone."""

    async def check() -> None:
        limits = {"acme": TenantLimits(sessions=LIMIT)}
        sessions = SessionConfig(idle_timeout_s=IDLE_S)
        async with whole(tmp_path, workers=2, auth=keys(), tenants=limits, sessions=sessions) as at:
            await at.until_workers(2)
            acme, globex = Keyed(at.ingress, ACME), Keyed(at.ingress, GLOBEX)
            first = await turn(globex, "old", create=True, idle_timeout_s=600).whole()
            seen, owners = await asyncio.gather(flood(acme), works(globex))
            assert set(owners) == {first.json()["session"]["worker"]}
            assert seen[200, ""] + seen[201, ""] >= LIMIT
            refused = {key: count for key, count in seen.items() if key[0] >= 400}
            assert set(refused) == {(400, "session_capacity"), (404, "session_unknown")}
            told = await acme.start("POST", "/v1/sessions", {"id": "one more"}).whole()
            assert told.status in (200, 201, 400)
            assert told.status != 400 or f"tenant has {LIMIT}" in told.json()["error"]["message"]
            assert at.ingress.router.cached_placements <= seen[200, ""] + seen[201, ""] + 11
            await at.until_so(lambda: only_the_old_one_is_left(at, acme, globex), within_s=120.0)

    run(check(), 300.0)


async def only_the_old_one_is_left(at: Whole, acme: Keyed, globex: Keyed) -> bool:
    listed = [[row["id"] for row in (await client.get("/v1/sessions")).json()["data"]] for client in (acme, globex)]
    owned = [worker.shell.stats()["sessions"] for worker in at.w.runtime.workers.values()]
    return listed == [[], ["old"]] and sum(owned) <= 1
