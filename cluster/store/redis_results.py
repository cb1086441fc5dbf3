"""Results of requests without a session, in Redis (rule T2)."""

from __future__ import annotations

from typing import Any

from actors.records import ClaimStatus, PutStatus, ResultClaim, ResultRecord, ResultState
from cluster.store.limits import StoreLimits
from cluster.store.redis_codec import packed, scope_of
from cluster.store.redis_link import RedisLink

_NAMES = (b"pool", b"results", b"bodies", b"results-by-time", b"results-by-tenant", b"result-holders")


class RedisResults:
    """The part of `SessionStore` that is about results."""

    def __init__(self, link: RedisLink, limits: StoreLimits) -> None:
        self._link = link
        self._limits = limits
        self._keys = [link.key(name) for name in _NAMES]

    def claim(self, tenant: str, key: str, digest: bytes, owner: str, now: float, lease_s: float) -> ResultClaim:
        args = packed(scope_of(tenant, key), digest, owner, repr(float(now)), repr(float(lease_s)))
        status, *record = self._link.script("claim_result", self._keys, args)
        return ResultClaim(status=ClaimStatus(status.decode()), record=_record(record))

    def put(
        self, tenant: str, key: str, digest: bytes, owner: str, body: bytes, now: float, ttl_s: float, replace: bool
    ) -> PutStatus:
        times = (repr(float(now)), repr(float(ttl_s)))
        limits = (self._limits.result_bytes, self._limits.results_bytes)
        args = packed(scope_of(tenant, key), digest, owner, *times, *limits, replace)
        return PutStatus(self._link.script("put_result", self._keys, args, body).decode())

    def get(self, tenant: str, key: str, now: float) -> ResultRecord | None:
        answer = self._link.script("get_result", self._keys, scope_of(tenant, key), repr(float(now)))
        return _record(answer[1:]) if answer else None

    def release(self, tenant: str, key: str, owner: str) -> bool:
        return bool(self._link.script("release_result", self._keys, scope_of(tenant, key), owner))


def _record(fields: list[Any]) -> ResultRecord:
    state, digest, owner, until, body = fields
    return ResultRecord(
        state=ResultState(state.decode()), digest=digest, owner=owner.decode(), until=float(until), body=body
    )
