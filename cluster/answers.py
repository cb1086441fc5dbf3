"""Results and expected exceptions as values: exceptions do not travel well between processes."""

from __future__ import annotations

from typing import Any

from actors.ports import NoWorker, SessionLimit, WeightsGone
from actors.records import SessionExists, SessionUnknown, StoreError, StoreFull, TurnUnknown

Answer = tuple[str, Any]
"""(OK, result), or an exception's name and its message, or (DOWN, why) when there was no answer."""

OK = "ok"
DOWN = "down"

_NAMED: dict[str, type[Exception]] = {
    raised.__name__: raised
    for raised in (
        SessionExists,
        SessionUnknown,
        TurnUnknown,
        StoreFull,
        StoreError,
        WeightsGone,
        NoWorker,
        SessionLimit,
    )
}
EXPECTED = tuple(_NAMED.values())
"""What `refusal` turns into an answer. Anything else is a bug and travels as the exception it is."""


def refusal(error: Exception) -> Answer:
    """The answer that stands for one of the `EXPECTED`."""
    name = next(name for name, raised in _NAMED.items() if isinstance(error, raised))
    return name, str(error)


def unwrap(answer: Answer, when_down: type[Exception]) -> Any:
    """The result, or the exception that the answer stands for; `when_down` for one that never came."""
    kind, value = answer
    if kind == OK:
        return value
    raise _NAMED.get(kind, when_down)(value)
