"""A turn as the values that every store writes, in the order in which it writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actors.messages import Outcome
from actors.records import TurnRecord
from actors.wire import pack_ids, unpack_ids


def turn_fields(turn: TurnRecord) -> tuple[Any, ...]:
    """All but `dropped`, which comes last and is written as each store likes. Token ids are packed."""
    return (
        turn.rid,
        turn.number,
        turn.parent,
        turn.keep,
        pack_ids(turn.input_ids),
        pack_ids(turn.output_ids),
        turn.outcome.value,
        turn.digest,
        turn.cached_tokens,
        turn.matched,
    )


def turn_from(fields: Sequence[Any], dropped: Sequence[str]) -> TurnRecord:
    """The inverse. Raises ValueError for what was never a turn."""
    rid, number, parent, keep, inputs, outputs, outcome, digest, cached, matched = fields
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
        dropped=tuple(dropped),
    )
