"""The process that owns the store, without its process: calls by name, answers as values."""

from __future__ import annotations

import uuid
from typing import Any

from actors import process
from actors.records import StoreError
from cluster.answers import EXPECTED, OK, Answer, refusal
from cluster.release import code_digest
from cluster.store.limits import StoreLimits
from cluster.store.open import open_store

METHODS = frozenset(
    {
        "create",
        "acquire",
        "get",
        "load",
        "commit",
        "fork",
        "rollback",
        "close",
        "list_sessions",
        "owned_by",
        "expired",
        "count",
        "figures",
        "claim_result",
        "put_result",
        "get_result",
        "release_result",
    }
)


class StoreService:
    """Opens the store of an URL and answers for it, from any thread. Raises StoreError when it cannot be opened."""

    def __init__(self, url: str, vocabulary: str = "", limits: StoreLimits | None = None) -> None:
        self._opened_with = (url, vocabulary, limits)
        self._code = code_digest()
        self._incarnation = uuid.uuid4().hex
        self._store = open_store(url, vocabulary, limits)

    def answer(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        """Call a method of the store and say what came of it."""
        if method not in METHODS:
            return refusal(StoreError(f"the store has no {method!r}"))
        try:
            if method == "figures":
                return OK, {**self._store.figures(), "process": process.figures()}
            return OK, getattr(self._store, method)(*args, **kwargs)
        except EXPECTED as error:
            return refusal(error)

    def ready(self, url: str, vocabulary: str, limits: StoreLimits | None) -> bool:
        """Answers once the store is open: whether it was opened with this."""
        return self._opened_with == (url, vocabulary, limits)

    def code(self) -> str:
        """Of the sources that it runs on: it may have been started by an earlier version of this program."""
        return self._code

    def incarnation(self) -> str:
        """Of this process: one that is restarted has another."""
        return self._incarnation

    def shut(self) -> None:
        """Let go of the medium."""
        self._store.shut()
