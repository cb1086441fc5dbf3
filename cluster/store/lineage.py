"""Turns by descent, in SQL: the chain that leads to a turn, and what continues from it (rule S12).

Run inside the caller's transaction. A session's turns are those of its generation; `parent` names a turn of the same.
"""

from __future__ import annotations

import json
import sqlite3

from cluster.store.limits import BYTES_PER_TOKEN, TURN_BYTES
from cluster.store.rows import TURN_COLUMNS

_CHAIN = """
WITH RECURSIVE chain (rid, parent) AS (
    SELECT rid, parent FROM turns WHERE generation = :generation AND rid = :rid
    UNION
    SELECT turns.rid, turns.parent FROM turns JOIN chain ON turns.rid = chain.parent
    WHERE turns.generation = :generation
)
"""
_BELOW = """
WITH RECURSIVE below (rid) AS (
    SELECT rid FROM turns WHERE generation = :generation AND parent = :rid
    UNION
    SELECT turns.rid FROM turns JOIN below ON turns.parent = below.rid WHERE turns.generation = :generation
)
"""


def copy_chain(db: sqlite3.Connection, generation: int, target: int, rid: str) -> None:
    """Give the session of generation `target` the turn `rid` and those it continues from."""
    db.execute(
        f"INSERT INTO turns (generation, {TURN_COLUMNS}) {_CHAIN} SELECT :target, {TURN_COLUMNS} FROM turns"
        " WHERE generation = :generation AND rid IN (SELECT rid FROM chain)",
        {"generation": generation, "target": target, "rid": rid},
    )


def drop_descendants(db: sqlite3.Connection, generation: int, rid: str) -> None:
    """Delete the turns that continue from `rid`, directly or not."""
    db.execute(
        f"{_BELOW} DELETE FROM turns WHERE generation = :generation AND rid IN (SELECT rid FROM below)",
        {"generation": generation, "rid": rid},
    )


def bytes_held(db: sqlite3.Connection, generation: int, rids: tuple[str, ...] | None = None) -> int:
    """What a session's turns, or those of these names, count for (`limits.bytes_of`)."""
    named = "" if rids is None else " AND rid IN (SELECT value FROM json_each(?))"
    (held,) = db.execute(
        f"SELECT sum({TURN_BYTES} + length(input_ids) + length(output_ids)) FROM turns WHERE generation = ?{named}",
        (generation,) if rids is None else (generation, json.dumps(rids)),
    ).fetchone()
    return int(held or 0)


def context_length(db: sqlite3.Connection, generation: int, rid: str) -> int:
    """Tokens of the context of `rid`: each turn of its chain keeps some of what came before, and adds its own."""
    rows = db.execute(
        f"{_CHAIN} SELECT keep, length(input_ids) + length(output_ids) FROM turns"
        " WHERE generation = :generation AND rid IN (SELECT rid FROM chain) ORDER BY number",
        {"generation": generation, "rid": rid},
    )
    length = 0
    for keep, added_bytes in rows:
        length = min(length, keep) + added_bytes // BYTES_PER_TOKEN
    return length
