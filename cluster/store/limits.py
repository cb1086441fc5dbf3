"""How much a store may hold, and what counts."""

from __future__ import annotations

from dataclasses import dataclass

from actors.records import TurnRecord
from configs import StoreConfig

BYTES_PER_TOKEN = 4
TURN_BYTES = 200
"""What a turn counts for beside its tokens: its name, its place, and what the medium needs to keep it."""
RESULT_BYTES = 200
"""What a key counts for beside its result, also when that is gone."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Byte caps; 0 = none. `session_bytes`, `total_bytes`: committed turns of one session, and of all together.
    `result_bytes`: one result of a request without a session; `results_bytes`: all of them together."""

    session_bytes: int = 0
    total_bytes: int = 0
    result_bytes: int = 2**20
    results_bytes: int = 64 * 2**20


def limits_of(config: StoreConfig) -> StoreLimits:
    return StoreLimits(
        session_bytes=config.max_session_bytes,
        total_bytes=config.max_total_bytes,
        result_bytes=config.max_result_bytes,
        results_bytes=config.max_results_bytes,
    )


def bytes_of(turn: TurnRecord) -> int:
    """What a turn counts for."""
    return TURN_BYTES + BYTES_PER_TOKEN * (len(turn.input_ids) + len(turn.output_ids))
