"""Rows of the SQLite store's tables as records."""

from __future__ import annotations

import json
from typing import Any

from actors.messages import Outcome, SessionMode
from actors.records import SessionRecord, TurnRecord
from actors.wire import unpack_ids

SESSION_COLUMNS = (
    "tenant, session_id, generation, epoch, owner, mode, idle_timeout_s, capacity_tokens, turns, tokens,"
    " last_active_at, head"
)
TURN_COLUMNS = "rid, number, parent, keep, input_ids, output_ids, outcome, digest, cached_tokens, matched, dropped"


def session_of(row: tuple[Any, ...]) -> SessionRecord:
    tenant, session_id, generation, epoch, owner, mode, idle, capacity, turns, tokens, last, head = row
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
    )


def turn_of(row: tuple[Any, ...]) -> TurnRecord:
    rid, number, parent, keep, inputs, outputs, outcome, digest, cached, matched, dropped = row
    return TurnRecord(
        rid=rid,
        number=number,
        parent=parent,
        keep=keep,
        input_ids=unpack_ids(inputs),
        output_ids=unpack_ids(outputs),
        outcome=Outcome(outcome),
        digest=digest,
        cached_tokens=cached,
        matched=matched,
        dropped=tuple(json.loads(dropped)),
    )
