"""Sessions and turns as the Redis store writes them (`lua/common.lua` says where).

Whatever Lua need not count with is text or opaque bytes to it, so that numbers come back bit for bit.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgpack

from actors.messages import SessionMode
from actors.records import SessionRecord, TurnRecord
from cluster.store.turn_fields import turn_fields, turn_from

_SUM = struct.Struct("<I")
_FIELDS = 14


def packed(*values: object) -> bytes:
    """Arguments of a script."""
    return bytes(msgpack.packb(values, use_bin_type=False))


def sized(name: str) -> bytes:
    """A name that others may follow: with its length in front no two pairs of names are spelt alike."""
    raw = name.encode()
    return b"%d:%s:" % (len(raw), raw)


def scope_of(tenant: str, name: str) -> bytes:
    """A session, or a result's key, of a tenant."""
    return sized(tenant) + name.encode()


def new_record(
    tenant: str,
    session_id: str,
    owner: str,
    mode: SessionMode,
    idle_timeout_s: float | None,
    capacity_tokens: int | None,
    now: float,
) -> list[object]:
    """A session that opens, without its generation."""
    limits = [_text(idle_timeout_s), _text(capacity_tokens)]
    return [tenant, session_id, 0, 1, owner, mode.value, *limits, 0, 0, repr(float(now)), False, 0, ""]


def session_of(data: bytes) -> SessionRecord:
    """Raises ValueError for bytes that are no session."""
    fields: list[Any] = msgpack.unpackb(data)
    fields += [""] * (_FIELDS - len(fields))  # Of schema 1, which had no weights.
    tenant, session_id, generation, epoch, owner, mode, idle, capacity, turns, tokens, last, head, _, weights = fields
    return SessionRecord(
        tenant=tenant,
        session_id=session_id,
        generation=generation,
        epoch=epoch,
        owner=owner,
        mode=SessionMode(mode),
        idle_timeout_s=float(idle) if idle else None,
        capacity_tokens=int(capacity) if capacity else None,
        turns=turns,
        tokens=tokens,
        last_active_at=float(last),
        head=head or None,
        weights=weights,
    )


def turn_place(turn: TurnRecord) -> list[object]:
    """What Lua knows of a turn."""
    return [turn.number, turn.parent or False, turn.keep, len(turn.input_ids) + len(turn.output_ids)]


def pack_turn(turn: TurnRecord) -> bytes:
    """The same turn always makes the same bytes: a checksum (Redis's append-only file has none), then its fields."""
    data = bytes(msgpack.packb([*turn_fields(turn), turn.dropped]))
    return _SUM.pack(zlib.crc32(data)) + data


def unpack_turn(data: bytes) -> TurnRecord:
    """Raises ValueError for bytes that are not what was written."""
    if data[: _SUM.size] != _SUM.pack(zlib.crc32(data[_SUM.size :])):
        raise ValueError("a turn's checksum is wrong: it is damaged")
    *fields, dropped = msgpack.unpackb(data[_SUM.size :])
    return turn_from(fields, dropped)


def _text(number: float | None) -> str:
    return "" if number is None else repr(number)
