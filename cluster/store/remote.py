"""The store as others see it: through a link to the process that owns it."""

from __future__ import annotations

import time
from typing import Any, Protocol

from actors.messages import SessionMode
from actors.records import (
    CommitStatus,
    PutStatus,
    ResultClaim,
    ResultRecord,
    SessionRecord,
    StoreError,
    TurnCommit,
    TurnRecord,
)
from cluster.answers import DOWN, Answer, unwrap

RETRY_PAUSE_S = 0.1


class StoreLink(Protocol):
    """Carries calls to the store's process. Picklable, so that it can be handed to a worker."""

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        """Blocks. `(DOWN, why)` when there is no answer: whether it was done is unknown then."""


class RemoteStore:
    """Implements `SessionStore`; for threads that may block.

    What may be done twice is tried again while the store's process restarts, for `patience_s` at most. `create` and
    `fork` may not: a second try would meet the session that the first one made.
    """

    def __init__(self, link: StoreLink, patience_s: float) -> None:
        self._link = link
        self._patience_s = patience_s

    def create(
        self,
        tenant: str,
        session_id: str,
        *,
        owner: str,
        mode: SessionMode,
        idle_timeout_s: float | None,
        capacity_tokens: int | None,
        now: float,
    ) -> SessionRecord:
        options = {"owner": owner, "mode": mode, "now": now}
        limits = {"idle_timeout_s": idle_timeout_s, "capacity_tokens": capacity_tokens}
        return _record(unwrap(self._link.call("create", (tenant, session_id), {**options, **limits}), StoreError))

    def acquire(self, tenant: str, session_id: str, *, owner: str, expected_epoch: int) -> SessionRecord:
        return _record(self._call("acquire", tenant, session_id, owner=owner, expected_epoch=expected_epoch))

    def get(self, tenant: str, session_id: str) -> SessionRecord:
        return _record(self._call("get", tenant, session_id))

    def load(self, tenant: str, session_id: str, generation: int) -> tuple[SessionRecord, list[TurnRecord]]:
        record, turns = self._call("load", tenant, session_id, generation)
        return record, turns

    def commit(self, commits: list[TurnCommit], now: float) -> list[CommitStatus]:
        return list(self._call("commit", commits, now))

    def fork(
        self,
        tenant: str,
        session_id: str,
        *,
        source_id: str,
        source_generation: int,
        turn: str | None,
        owner: str,
        now: float,
    ) -> SessionRecord:
        source = {"source_id": source_id, "source_generation": source_generation, "turn": turn}
        options = {**source, "owner": owner, "now": now}
        return _record(unwrap(self._link.call("fork", (tenant, session_id), options), StoreError))

    def rollback(
        self, tenant: str, session_id: str, generation: int, *, epoch: int, turn: str, now: float
    ) -> CommitStatus:
        status = self._call("rollback", tenant, session_id, generation, epoch=epoch, turn=turn, now=now)
        assert isinstance(status, CommitStatus)
        return status

    def close(self, tenant: str, session_id: str, generation: int, *, epoch: int | None = None) -> bool:
        return bool(self._call("close", tenant, session_id, generation, epoch=epoch))

    def list_sessions(self, tenant: str, *, after: str = "", limit: int = 100) -> list[SessionRecord]:
        return list(self._call("list_sessions", tenant, after=after, limit=limit))

    def owned_by(self, owner: str) -> list[SessionRecord]:
        return list(self._call("owned_by", owner))

    def expired(self, now: float, limit: int = 1000) -> list[SessionRecord]:
        return list(self._call("expired", now, limit=limit))

    def count(self, tenant: str) -> int:
        return int(self._call("count", tenant))

    def figures(self) -> dict[str, object]:
        figures: dict[str, object] = unwrap(self._link.call("figures", (), {}), StoreError)
        return figures

    def claim_result(
        self, tenant: str, key: str, *, digest: bytes, owner: str, now: float, lease_s: float
    ) -> ResultClaim:
        claim = self._call("claim_result", tenant, key, digest=digest, owner=owner, now=now, lease_s=lease_s)
        assert isinstance(claim, ResultClaim)
        return claim

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
        what = {"digest": digest, "owner": owner, "body": body, "replace": replace}
        return PutStatus(self._call("put_result", tenant, key, **what, now=now, ttl_s=ttl_s))

    def get_result(self, tenant: str, key: str, now: float) -> ResultRecord | None:
        record = self._call("get_result", tenant, key, now)
        assert record is None or isinstance(record, ResultRecord)
        return record

    def release_result(self, tenant: str, key: str, *, owner: str) -> bool:
        return bool(self._call("release_result", tenant, key, owner=owner))

    def _call(self, method: str, *args: object, **kwargs: object) -> Any:
        give_up_at = time.monotonic() + self._patience_s
        while True:
            answer = self._link.call(method, args, kwargs)
            if answer[0] != DOWN or time.monotonic() >= give_up_at:
                return unwrap(answer, StoreError)
            time.sleep(RETRY_PAUSE_S)


def _record(value: Any) -> SessionRecord:
    assert isinstance(value, SessionRecord)
    return value
