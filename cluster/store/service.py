"""The store behind a message boundary: calls by name, answers as values.

Exceptions do not travel well between processes; here each answer says what it is.
"""

from __future__ import annotations

from typing import Any

from actors.records import SessionExists, SessionStore, SessionUnknown, StoreError

Answer = tuple[str, Any]
"""("ok", result), or an exception's name and its message, or (DOWN, why) from a link that got no answer."""

DOWN = "down"

METHODS = frozenset(
    {"create", "acquire", "get", "load", "commit", "close", "list_sessions", "owned_by", "expired", "count"}
)
_RAISED: dict[str, type[Exception]] = {
    "SessionExists": SessionExists,
    "SessionUnknown": SessionUnknown,
    "StoreError": StoreError,
}


def answer(store: SessionStore, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
    """Call a store and put what comes of it in a value."""
    if method not in METHODS:
        return "StoreError", f"the store has no {method!r}"
    try:
        return "ok", getattr(store, method)(*args, **kwargs)
    except tuple(_RAISED.values()) as error:
        return type(error).__name__, str(error)


def unwrap(answer: Answer) -> Any:
    """The result, or the exception that it stands for."""
    kind, value = answer
    if kind == "ok":
        return value
    if kind == DOWN:
        raise StoreError(f"the session store is out of reach: {value}")
    raise _RAISED.get(kind, StoreError)(value)
