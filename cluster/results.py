"""Claims and results of requests without a session (rule T2), with the pool's clock and settings."""

from __future__ import annotations

from collections.abc import Callable

from actors.records import PutStatus, ResultClaim, ResultRecord
from cluster.store.offload import OffloadedStore

LEASE_S = 20.0
"""How long a claim lasts that nobody renews; ingresses renew theirs four times as often."""


class ResultDesk:
    def __init__(self, store: OffloadedStore, ttl_s: float, wall_clock: Callable[[], float]) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._wall_clock = wall_clock

    async def claim(self, tenant: str, key: str, *, digest: bytes, owner: str) -> ResultClaim:
        now = self._wall_clock()
        return await self._store.run(
            lambda store: store.claim_result(tenant, key, digest=digest, owner=owner, now=now, lease_s=LEASE_S)
        )

    async def put(
        self,
        tenant: str,
        key: str,
        *,
        digest: bytes,
        owner: str,
        body: bytes,
        ttl_s: float | None = None,
        replace: bool = False,
    ) -> PutStatus:
        now, lives_s = self._wall_clock(), self._ttl_s if ttl_s is None else ttl_s
        return await self._store.run(
            lambda store: store.put_result(
                tenant, key, digest=digest, owner=owner, body=body, now=now, ttl_s=lives_s, replace=replace
            )
        )

    async def get(self, tenant: str, key: str) -> ResultRecord | None:
        now = self._wall_clock()
        return await self._store.run(lambda store: store.get_result(tenant, key, now))

    async def release(self, tenant: str, key: str, *, owner: str) -> bool:
        return await self._store.run(lambda store: store.release_result(tenant, key, owner=owner))
