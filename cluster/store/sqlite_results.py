"""Results of requests without a session, in SQLite (rule T2). Run inside the caller's transaction."""

from __future__ import annotations

import sqlite3

from actors.records import ClaimStatus, PutStatus, ResultClaim, ResultRecord, ResultState
from cluster.store.limits import RESULT_BYTES, StoreLimits

SWEEP = 16
"""Rows whose time has come that every claim and put sees to."""

_DUE = "SELECT tenant, key FROM results WHERE until <= ? ORDER BY until LIMIT ?"
_HOLDERS = "SELECT tenant FROM result_holders ORDER BY bytes DESC"
_FIRST_TO_GO = "SELECT key, state FROM results WHERE tenant = ? AND state <> 'running' ORDER BY until LIMIT 1"


def claim_result(
    db: sqlite3.Connection, tenant: str, key: str, digest: bytes, owner: str, now: float, lease_s: float
) -> ResultClaim:
    _sweep(db, now)
    record = _settle(db, tenant, key, now)
    if record is not None and record.digest != digest:
        return ResultClaim(status=ClaimStatus.CONFLICT, record=_bare(record))
    if record is not None and (record.state is not ResultState.RUNNING or record.owner != owner):
        return ResultClaim(status=ClaimStatus(record.state.value), record=record)
    made = ResultRecord(state=ResultState.RUNNING, digest=digest, owner=owner, until=now + lease_s)
    _keep(db, tenant, key, made, 0.0)
    return ResultClaim(status=ClaimStatus.CLAIMED, record=made)


def put_result(
    db: sqlite3.Connection,
    tenant: str,
    key: str,
    made: ResultRecord,
    *,
    now: float,
    ttl_s: float,
    limits: StoreLimits,
    replace: bool,
) -> PutStatus:
    """`made`: the result as it is to be stored."""
    _sweep(db, now)
    record = None if replace else _settle(db, tenant, key, now)
    if record is not None and (record.digest, record.owner) != (made.digest, made.owner):
        return PutStatus.STALE
    if record is not None and record.state is not ResultState.RUNNING:
        return PutStatus.STORED if record.state is ResultState.DONE else PutStatus.STALE
    one, together = limits.result_bytes, limits.results_bytes
    if 0 < one < len(made.body) or 0 < together < len(made.body) + RESULT_BYTES:
        if replace:
            return PutStatus.TOO_LARGE
        gone = ResultRecord(state=ResultState.EXPIRED, digest=made.digest, owner=made.owner, until=made.until)
        _keep(db, tenant, key, gone, ttl_s)
        return PutStatus.TOO_LARGE
    _keep(db, tenant, key, made, ttl_s)
    _make_room(db, together)
    return PutStatus.STORED


def get_result(db: sqlite3.Connection, tenant: str, key: str, now: float) -> ResultRecord | None:
    found = _stored(db, tenant, key)
    return None if found is None else _at(*found, now)


def release_result(db: sqlite3.Connection, tenant: str, key: str, owner: str) -> bool:
    gone = db.execute(
        "DELETE FROM results WHERE tenant = ? AND key = ? AND owner = ? AND state = 'running'", (tenant, key, owner)
    )
    return gone.rowcount > 0


def _stored(db: sqlite3.Connection, tenant: str, key: str) -> tuple[ResultRecord, float] | None:
    """The row as it is, and its time to live."""
    row = db.execute(
        "SELECT state, digest, owner, until, body, ttl_s FROM results WHERE tenant = ? AND key = ?", (tenant, key)
    ).fetchone()
    if row is None:
        return None
    state, digest, owner, until, body, ttl_s = row
    return ResultRecord(state=ResultState(state), digest=digest, owner=owner, until=until, body=body), ttl_s


def _at(record: ResultRecord, ttl_s: float, now: float) -> ResultRecord | None:
    """The record as it is at `now`: a result that expired is known as that for as long again; what lapsed is
    nothing."""
    if now < record.until:
        return record
    if record.state is not ResultState.DONE or now >= record.until + ttl_s:
        return None
    return ResultRecord(state=ResultState.EXPIRED, digest=record.digest, owner=record.owner, until=record.until + ttl_s)


def _settle(db: sqlite3.Connection, tenant: str, key: str, now: float) -> ResultRecord | None:
    found = _stored(db, tenant, key)
    if found is None:
        return None
    record, ttl_s = found
    current = _at(record, ttl_s, now)
    if current is None:
        _forget(db, tenant, key)
    elif current.state is not record.state:
        _keep(db, tenant, key, current, ttl_s)
    return current


def _sweep(db: sqlite3.Connection, now: float) -> None:
    for tenant, key in db.execute(_DUE, (now, SWEEP)).fetchall():
        _settle(db, tenant, key, now)


def _make_room(db: sqlite3.Connection, limit: int) -> None:
    """Until all together are within the limit: of the tenant that holds most, so that nobody loses what is within an
    even share (rule S13), what expires first does so now, is forgotten when it would have expired, or now if that is
    not enough. Claims stay."""
    while 0 < limit < db.execute("SELECT result_bytes FROM remora_totals").fetchone()[0]:
        first = _first_to_go(db)
        if first is None:
            return
        tenant, key, state = first
        if state == ResultState.DONE.value:
            db.execute("UPDATE results SET state = 'expired', body = x'' WHERE tenant = ? AND key = ?", (tenant, key))
        else:
            _forget(db, tenant, key)


def _first_to_go(db: sqlite3.Connection) -> tuple[str, str, str] | None:
    """(tenant, key, state)."""
    for (tenant,) in db.execute(_HOLDERS):
        first = db.execute(_FIRST_TO_GO, (tenant,)).fetchone()
        if first is not None:
            return tenant, *first
    return None


def _keep(db: sqlite3.Connection, tenant: str, key: str, record: ResultRecord, ttl_s: float) -> None:
    db.execute(
        "INSERT INTO results (tenant, key, state, digest, owner, until, ttl_s, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (tenant, key) DO UPDATE SET state = excluded.state, digest = excluded.digest,"
        " owner = excluded.owner, until = excluded.until, ttl_s = excluded.ttl_s, body = excluded.body",
        (tenant, key, record.state.value, record.digest, record.owner, record.until, ttl_s, record.body),
    )


def _forget(db: sqlite3.Connection, tenant: str, key: str) -> None:
    db.execute("DELETE FROM results WHERE tenant = ? AND key = ?", (tenant, key))


def _bare(record: ResultRecord) -> ResultRecord:
    """Without the result: it answers another request."""
    return ResultRecord(state=record.state, digest=record.digest, owner=record.owner, until=record.until)
