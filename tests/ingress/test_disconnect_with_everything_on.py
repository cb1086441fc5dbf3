"""A client that leaves an ingress with every layer switched on: keys, limits of tenants, the request log, metrics."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from configs import TenantLimits
from tests.ingress.asgi import eventually, run
from tests.ingress.keyed import ACME, GLOBEX, Keyed, keys
from tests.ingress.local import cluster
from tests.ingress.test_with_workers import idle

LIMITS = TenantLimits(requests_per_minute=1000, tokens_per_minute=10**6, concurrent_requests=1, sessions=5, weight=2.0)


@pytest.mark.parametrize("how", ["message", "error", "cancel"])
@pytest.mark.parametrize("stream", [True, False])
def test_leaving_is_noticed_at_once_through_every_layer(tmp_path: Path, how: str, stream: bool) -> None:
    """A1, A6, A7, E6, S13, session case A16: the request ends long before its 5,000 tokens, its pages and its tenant's
    place are free again, the log says that it was not complete, and the other tenant notices nothing."""
    log = tmp_path / "access.jsonl"

    async def check() -> None:
        tenants = {"acme": LIMITS, "globex": LIMITS}
        async with cluster(tmp_path, step_s=0.002, auth=keys(), tenants=tenants, access_log=str(log)) as at:
            acme, globex = Keyed(at.ingress, ACME), Keyed(at.ingress, GLOBEX)
            leaves = acme.chat("go", stream=stream, max_tokens=5000, session={"id": "s", "create": True})
            stays = globex.chat("go", stream=stream, max_tokens=40)
            await eventually(lambda: at.shell().stats()["running"] == 2)
            if stream:
                await leaves.until('"content"')
            refused = await acme.chat("too many at once", max_tokens=1).whole()
            assert refused.status == 429
            if how == "message":
                leaves.disconnect()
            elif how == "error":
                leaves.break_off()
            else:
                leaves.task.cancel()
            await asyncio.wait({leaves.task}, timeout=60)
            assert leaves.task.done()
            await eventually(lambda: at.ingress.metrics.open_requests <= 1)
            again = await acme.chat("again", max_tokens=2, session={"id": "s", "create": True}).whole()
            assert again.status == 200
            assert (await stays.whole()).status == 200
            await idle(at)
            counted = {
                (sample.labels["reason"], sample.labels["outcome"])
                for metric in at.ingress.metrics.ended.collect()
                for sample in metric.samples
                if sample.name.endswith("_total") and sample.value and sample.labels["outcome"] == "abort"
            }
            assert ("client_disconnect", "abort") in counted

    run(check())
    rows = [json.loads(line) for line in log.read_text(encoding="ascii").splitlines()]
    chats = [(row["tenant"], row["complete"]) for row in rows if row["path"] == "/v1/chat/completions"]
    assert chats.count(("acme", False)) == 1
    assert ("globex", True) in chats
    assert all(complete for tenant, complete in chats if tenant == "globex")
