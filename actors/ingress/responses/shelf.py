"""Where responses are kept once they have ended, and marked while they run in the background: in the results of the
session store, under names that no Idempotency-Key can have."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, replace
from functools import partial

from actors.ingress.channel import spawn
from actors.ingress.responses.told import Told
from actors.ingress.responses.wording import key_expired, key_reused
from actors.ingress.storing import in_time, renewed, stubbornly
from actors.ports import PoolPort
from actors.records import ClaimStatus, PutStatus, ResultState
from configs import RemoraConfig

log = logging.getLogger(__name__)

FOR_EVER_S = 10 * 365 * 86400.0


@dataclass(frozen=True, slots=True)
class Found:
    """A response of the store. `lost`: it ran in the background, and whoever ran it is gone."""

    told: Told
    lost: bool = False


class NotKept(Exception):
    """There is none. The message says why, as far as that is known."""


class Deleted(NotKept):
    """It was there, and is not to be told or gone on from any more."""


class Shelf:
    """The records of one cluster's responses. Raises StoreError where the store or the pool cannot be asked."""

    def __init__(self, pool: PoolPort, config: RemoraConfig) -> None:
        self._pool = pool
        self._most = config.store.max_result_bytes
        idle_s = config.sessions.idle_timeout_s or FOR_EVER_S
        self._ttl_s = max(config.store.idempotency_ttl_s, idle_s)

    async def find(self, tenant: str, response_id: str) -> Found:
        """Raises NotKept."""
        record = await in_time(self._pool.get_result(tenant, _key(response_id)))
        if record is not None and record.state is ResultState.DONE:
            if not record.body:
                raise Deleted("it was deleted")
            return Found(Told.unpacked(record.body))
        if record is not None and record.state is ResultState.EXPIRED:
            raise NotKept("it is no longer kept")
        begun = await in_time(self._pool.get_result(tenant, _begun(response_id)))
        if begun is None or not begun.body:
            raise NotKept("it was never stored, or is no longer kept")
        return Found(replace(Told.unpacked(begun.body), begun=True), lost=record is None)

    async def begin(self, tenant: str, told: Told, digest: bytes) -> Mark | None:
        """Make it known that a response runs. None: it is known already, by that name and of that body.

        Raises ApiError when another body has used its name."""
        owner = uuid.uuid4().hex
        claim = await in_time(self._pool.claim_result(tenant, _key(told.id), digest=digest, owner=owner))
        if claim.status is ClaimStatus.CONFLICT:
            raise key_reused()
        if claim.status is ClaimStatus.EXPIRED:
            raise key_expired("is no longer kept")
        if claim.status is not ClaimStatus.CLAIMED:
            return None
        body = self._fitting(told)
        put = self._pool.put_result(
            tenant, _begun(told.id), digest=digest, owner=owner, body=body, ttl_s=self._ttl_s, replace=True
        )
        await in_time(put)
        return Mark(self._pool, tenant, told.id, digest, owner)

    async def keep(self, tenant: str, told: Told, digest: bytes, owner: str = "") -> None:
        """A response that is over. Should there be a record, that stays: the request was answered before."""
        key, body, owner = _key(told.id), self._fitting(told), owner or uuid.uuid4().hex

        async def put() -> None:
            done = self._pool.put_result(tenant, key, digest=digest, owner=owner, body=body, ttl_s=self._ttl_s)
            if await in_time(done) is PutStatus.TOO_LARGE:
                log.warning("a response of %d bytes is larger than any that is kept", len(body))

        await stubbornly(put, "a response could not be kept, so that it cannot be asked for")

    async def drop(self, tenant: str, response_id: str) -> None:
        """What is left says that it was deleted."""
        for key in (_begun(response_id), _key(response_id)):
            put = self._pool.put_result(
                tenant, key, digest=b"", owner="deleted", body=b"", ttl_s=self._ttl_s, replace=True
            )
            await in_time(put)

    async def save(self, tenant: str, name: str, body: bytes, digest: bytes = b"") -> PutStatus:
        """Another record of this API, in place of what there was under its name. `digest` outlives it for a while,
        should it have to make room."""
        put = self._pool.put_result(
            tenant, _other(name), digest=digest, owner="", body=body, ttl_s=self._ttl_s, replace=True
        )
        return await in_time(put)

    async def load(self, tenant: str, name: str) -> tuple[bytes, bytes | None]:
        """(body, digest). The body is empty when there is none any more; the digest is None when nothing is known."""
        record = await in_time(self._pool.get_result(tenant, _other(name)))
        if record is None:
            return b"", None
        return record.body if record.state is ResultState.DONE else b"", record.digest

    @property
    def most_bytes(self) -> int:
        """Of one record; 0: no limit."""
        return self._most

    def _fitting(self, told: Told) -> bytes:
        """As much of it as there is room for."""
        body = told.packed()
        for less in told.smaller():
            if 0 < self._most < len(body):
                body = less.packed()
        return body


class Mark:
    """Says that a response runs, as long as whoever runs it lives: `stop` it when that is over."""

    def __init__(self, pool: PoolPort, tenant: str, response_id: str, digest: bytes, owner: str) -> None:
        self.owner = owner
        claim = partial(pool.claim_result, tenant, _key(response_id), digest=digest, owner=owner)
        self._renewing = spawn(renewed(claim, "the mark of a running response"))

    def stop(self) -> None:
        self._renewing.cancel()


def _key(response_id: str) -> str:
    return f"\x1fresponse {response_id}"


def _begun(response_id: str) -> str:
    return f"\x1fresponse-begun {response_id}"


def _other(name: str) -> str:
    return f"\x1f{name}"
