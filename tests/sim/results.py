"""Results of requests without a session, as a dictionary: a third program beside the two stores'."""

from __future__ import annotations

from dataclasses import dataclass, replace

from actors.records import ClaimStatus, PutStatus, ResultClaim, ResultRecord, ResultState


@dataclass(frozen=True)
class Kept:
    record: ResultRecord
    ttl_s: float


class SimResults:
    """The part of `SessionStore` that is about results; without byte caps."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Kept] = {}

    def claim_result(
        self, tenant: str, key: str, *, digest: bytes, owner: str, now: float, lease_s: float
    ) -> ResultClaim:
        known = self.get_result(tenant, key, now)
        if known is not None and known.digest != digest:
            return ResultClaim(status=ClaimStatus.CONFLICT, record=replace(known, body=b""))
        if known is not None and (known.state is not ResultState.RUNNING or known.owner != owner):
            return ResultClaim(status=ClaimStatus(known.state.value), record=known)
        made = ResultRecord(state=ResultState.RUNNING, digest=digest, owner=owner, until=now + lease_s)
        self._kept[(tenant, key)] = Kept(made, 0.0)
        return ResultClaim(status=ClaimStatus.CLAIMED, record=made)

    def put_result(
        self,
        tenant: str,
        key: str,
        *,
        digest: bytes,
        owner: str,
        body: bytes,
        now: float,
        ttl_s: float,
        replace: bool = False,
    ) -> PutStatus:
        known = None if replace else self.get_result(tenant, key, now)
        if known is not None and (known.digest, known.owner) != (digest, owner):
            return PutStatus.STALE
        if known is not None and known.state is not ResultState.RUNNING:
            return PutStatus.STORED if known.state is ResultState.DONE else PutStatus.STALE
        made = ResultRecord(state=ResultState.DONE, digest=digest, owner=owner, until=now + ttl_s, body=body)
        self._kept[(tenant, key)] = Kept(made, ttl_s)
        return PutStatus.STORED

    def get_result(self, tenant: str, key: str, now: float) -> ResultRecord | None:
        kept = self._kept.get((tenant, key))
        if kept is None:
            return None
        record, forgotten_at = kept.record, kept.record.until + kept.ttl_s
        if now < record.until:
            return record
        if record.state is ResultState.DONE and now < forgotten_at:
            return replace(record, state=ResultState.EXPIRED, until=forgotten_at, body=b"")
        return None

    def release_result(self, tenant: str, key: str, *, owner: str) -> bool:
        kept = self._kept.get((tenant, key))
        if kept is None or kept.record.state is not ResultState.RUNNING or kept.record.owner != owner:
            return False
        del self._kept[(tenant, key)]
        return True
