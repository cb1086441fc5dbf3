"""Sessions in Redis: every process connects to it by itself, and each change is one Lua script.

A script is all or nothing and runs alone, which is what guards epochs, generations and batches. How durable a change
is when a method returns is the server's to say: with `appendonly yes` and `appendfsync always` it is on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from actors.messages import SessionMode
from actors.records import (
    CommitStatus,
    PutStatus,
    ResultClaim,
    ResultRecord,
    SessionExists,
    SessionRecord,
    SessionUnknown,
    StoreFull,
    TurnCommit,
    TurnRecord,
    TurnUnknown,
)
from cluster.store import redis_server
from cluster.store.redis_codec import (
    new_record,
    pack_turn,
    packed,
    scope_of,
    session_of,
    sized,
    turn_place,
    unpack_turn,
)
from cluster.store.redis_link import RedisLink, RedisSettings
from cluster.store.redis_results import RedisResults

OWNED_AT_ONCE = 500
"""Records read by one script: others wait meanwhile."""
_CONFLICT = b"conflict"


def open_redis(settings: RedisSettings, vocabulary: str = "") -> RedisStore:
    """`vocabulary` names the model whose token ids it is to hold; empty means that nobody checks. Raises StoreError
    when the server cannot be reached or used, or holds sessions of another."""
    store = RedisStore(settings)
    try:
        redis_server.inspect(store.link)
        redis_server.claim(store.link, vocabulary)
    except BaseException:
        store.shut()
        raise
    return store


class RedisStore:
    """Implements `SessionStore`. Any thread may call; a copy in another process connects anew.

    What may be done twice is tried again while the server restarts, for `timeout_s` at most. `create` and `fork` may
    not: a second try would meet the session that the first one made.
    """

    def __init__(self, settings: RedisSettings) -> None:
        """Connects to nothing yet. Raises StoreError for an URL that cannot be read."""
        self._settings = settings
        self.link = RedisLink(settings)
        self._results = RedisResults(self.link, settings.limits)
        self._keys = [self.link.key(name) for name in redis_server.KEYS]
        self._sessions, self._by_tenant = self._keys[1], self._keys[2]

    def __reduce__(self) -> tuple[Any, ...]:
        return RedisStore, (self._settings,)

    def shut(self) -> None:
        """Close the connections; the next call opens new ones."""
        self.link.close()

    # -- sessions and their owners ---------------------------------------------------------------------------------

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
        with self.link.guard():
            record = new_record(tenant, session_id, owner, mode, idle_timeout_s, capacity_tokens, now)
            args = packed(scope_of(tenant, session_id), record, _milliseconds(now))
            return _made(self.link.script("create", self._keys, args, again=False), session_id)

    def acquire(self, tenant: str, session_id: str, *, owner: str, expected_epoch: int) -> SessionRecord:
        with self.link.guard():
            args = packed(scope_of(tenant, session_id), owner, expected_epoch)
            return _made(self.link.script("acquire", self._keys, args), session_id)

    def close(self, tenant: str, session_id: str, generation: int, *, epoch: int | None = None) -> bool:
        with self.link.guard():
            scope = scope_of(tenant, session_id)
            args = packed(scope, generation, epoch if epoch is not None else False)
            return bool(self.link.script("close", [*self._keys, *self._turns(scope)], args))

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
        limits = self._settings.limits
        with self.link.guard():
            scope, source = scope_of(tenant, session_id), scope_of(tenant, source_id)
            what = (scope, session_id, source, source_generation, turn or False)
            when = (repr(float(now)), _milliseconds(now))
            args = packed(*what, owner, *when, limits.session_bytes, limits.total_bytes)
            keys = [*self._keys, *self._turns(source), *self._turns(scope)]
            answer = self.link.script("fork", keys, args, again=False)
            if answer[0] == b"turn_unknown":
                raise TurnUnknown(turn or "")
            if answer[0] == b"unknown":
                raise SessionUnknown(source_id)
            if answer[0] in (b"session_full", b"store_full"):
                raise StoreFull(f"{self.link.name}: the fork would take it over its byte cap")
            return _made(answer, session_id)

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, tenant: str, session_id: str) -> SessionRecord:
        with self.link.guard():
            scope = scope_of(tenant, session_id)
            found: Any = self.link.call(lambda client: client.hget(self._sessions, scope))
            if found is None:
                raise SessionUnknown(session_id)
            return session_of(found)

    def load(self, tenant: str, session_id: str, generation: int) -> tuple[SessionRecord, list[TurnRecord]]:
        with self.link.guard():
            scope = scope_of(tenant, session_id)
            answer = self.link.script("load", [*self._keys, self._turns(scope)[1]], scope)
            record = session_of(answer[0]) if answer else None
            if record is None or record.generation != generation:
                raise SessionUnknown(session_id)
            turns = sorted((unpack_turn(data) for data in answer[1]), key=lambda turn: turn.number)
            if len(turns) != record.turns:
                raise ValueError(f"{len(turns)} of {record.turns} turns of a session are there")
            return record, turns

    def count(self, tenant: str) -> int:
        with self.link.guard():
            start = sized(tenant)
            between = (b"[" + start, b"(" + start + b"\xff")
            found: Any = self.link.call(lambda client: client.zlexcount(self._by_tenant, *between))
            return int(found)

    def figures(self) -> dict[str, object]:
        """`bytes` are those that count for the caps; the server's memory holds them and whatever else it keeps."""
        return redis_server.figures(self.link)

    def list_sessions(self, tenant: str, *, after: str = "", limit: int = 100) -> list[SessionRecord]:
        with self.link.guard():
            start = sized(tenant)
            found = self._select("tenant", b"(" + start + after.encode(), b"(" + start + b"\xff", limit)
            return [record for _, record in found]

    def owned_by(self, owner: str) -> list[SessionRecord]:
        with self.link.guard():
            records = [record for record in self._owned(owner) if record.owner == owner]
            return sorted(records, key=lambda record: (record.tenant, record.session_id))

    def expired(self, now: float, limit: int = 1000) -> list[SessionRecord]:
        with self.link.guard():
            return [record for _, record in self._select("expired", b"-inf", repr(float(now)), limit)]

    # -- turns -----------------------------------------------------------------------------------------------------

    def commit(self, commits: list[TurnCommit], now: float) -> list[CommitStatus]:
        if not commits:
            return []
        limits = self._settings.limits
        with self.link.guard():
            scopes = [scope_of(commit.tenant, commit.session_id) for commit in commits]
            rows = [_row(scope, commit) for scope, commit in zip(scopes, commits, strict=True)]
            keys = [*self._keys, *(key for scope in scopes for key in self._turns(scope))]
            args = packed(rows, repr(float(now)), limits.session_bytes, limits.total_bytes)
            statuses = self.link.script("commit", keys, args)
            if _CONFLICT in statuses:
                raise ValueError(f"turn {commits[statuses.index(_CONFLICT)].turn.rid!r} is there with other tokens")
            return [CommitStatus(status.decode()) for status in statuses]

    def rollback(
        self, tenant: str, session_id: str, generation: int, *, epoch: int, turn: str, now: float
    ) -> CommitStatus:
        with self.link.guard():
            scope = scope_of(tenant, session_id)
            args = packed(scope, generation, epoch, turn, repr(float(now)))
            (status,) = self.link.script("rollback", [*self._keys, *self._turns(scope)], args)
            if status == b"turn_unknown":
                raise TurnUnknown(turn)
            return CommitStatus(status.decode())

    # -- results of requests without a session -----------------------------------------------------------------------

    def claim_result(
        self, tenant: str, key: str, *, digest: bytes, owner: str, now: float, lease_s: float
    ) -> ResultClaim:
        with self.link.guard():
            return self._results.claim(tenant, key, digest, owner, now, lease_s)

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
        with self.link.guard():
            return self._results.put(tenant, key, digest, owner, body, now, ttl_s, replace)

    def get_result(self, tenant: str, key: str, now: float) -> ResultRecord | None:
        with self.link.guard():
            return self._results.get(tenant, key, now)

    def release_result(self, tenant: str, key: str, *, owner: str) -> bool:
        with self.link.guard():
            return self._results.release(tenant, key, owner)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _turns(self, scope: bytes) -> tuple[bytes, bytes]:
        """The two hashes of a session's turns."""
        return self.link.key(b"turns", scope), self.link.key(b"data", scope)

    def _select(self, kind: str, start: bytes, end: bytes | str, limit: int) -> Iterator[tuple[bytes, SessionRecord]]:
        """Members of an index with their sessions, in order."""
        for member, data in self.link.script("select", self._keys, kind, start, end, limit):
            yield member, session_of(data)

    def _owned(self, owner: str) -> Iterator[SessionRecord]:
        member = sized(owner)
        end = member + b"\xff"
        while page := list(self._select("owner", b"(" + member, b"(" + end, OWNED_AT_ONCE)):
            yield from (record for _, record in page)
            member = page[-1][0]


def _made(answer: list[Any], session_id: str) -> SessionRecord:
    if answer[0] == b"exists":
        raise SessionExists(session_id)
    if answer[0] == b"unknown":
        raise SessionUnknown(session_id)
    return session_of(answer[1])


def _row(scope: bytes, commit: TurnCommit) -> list[object]:
    """A commit as the script takes it."""
    turn = commit.turn
    what = [scope, commit.generation, commit.epoch, turn.rid, turn_place(turn), pack_turn(turn)]
    return [*what, commit.tokens, list(turn.dropped), commit.weights]


def _milliseconds(now: float) -> int:
    return max(0, int(now * 1000))
