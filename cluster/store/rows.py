"""Rows of the SQLite store's tables as records."""

from __future__ import annotations

import json
import zlib
from typing import Any

import msgpack

from actors.messages import SessionMode
from actors.records import SessionRecord, TurnRecord
from cluster.store.turn_fields import turn_fields, turn_from

SESSION_COLUMNS = (
    "tenant, session_id, generation, epoch, owner, mode, idle_timeout_s, capacity_tokens, turns, tokens,"
    " last_active_at, head, weights"
)
TURN_FIELDS = "rid, number, parent, keep, input_ids, output_ids, outcome, digest, cached_tokens, matched, dropped"
TURN_COLUMNS = f"{TURN_FIELDS}, sum"


def session_of(row: tuple[Any, ...]) -> SessionRecord:
    tenant, session_id, generation, epoch, owner, mode, idle, capacity, turns, tokens, last, head, weights = row
    return SessionRecord(
        tenant=tenant,
        session_id=session_id,
        generation=generation,
        epoch=epoch,
        owner=owner,
        mode=SessionMode(mode),
        idle_timeout_s=idle,
        capacity_tokens=capacity,
        turns=turns,
        tokens=tokens,
        last_active_at=last,
        head=head,
        weights=weights,
    )


def turn_sum(fields: tuple[Any, ...]) -> int:
    """Checksum of a turn's TURN_FIELDS. SQLite has none: bytes that rot in the middle of a page are given out as they
    are, and a history must not be (rule T6)."""
    return zlib.crc32(msgpack.packb(fields))


def row_of(turn: TurnRecord) -> tuple[Any, ...]:
    """Its TURN_COLUMNS."""
    fields = (*turn_fields(turn), json.dumps(turn.dropped))
    return (*fields, turn_sum(fields))


def turn_of(row: tuple[Any, ...]) -> TurnRecord:
    """Raises ValueError for a row that is not what was written."""
    *fields, expected = row
    if turn_sum(tuple(fields)) != expected:
        raise ValueError("a turn's checksum is wrong: the file is damaged")
    *values, dropped = fields
    return turn_from(values, json.loads(dropped))
