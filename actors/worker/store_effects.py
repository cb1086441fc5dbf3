"""Performs the engine's effects on the session store, off the loop, and mails the results back."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from actors.engine.effects import (
    Effect,
    EffectResult,
    ForgetSession,
    LoadSession,
    RollBackTurns,
    SessionForgotten,
    SessionLoaded,
    StoreTurn,
    TurnsRolledBack,
    TurnStored,
)
from actors.records import CommitStatus, SessionStore, SessionUnknown, StoreError, TurnUnknown

_FULL = (CommitStatus.SESSION_FULL, CommitStatus.STORE_FULL)

logger = logging.getLogger("remora.worker")


class StoreEffects:
    """Turns are committed by one thread in batches: all that gathered while the last batch was being written.
    `weights`: the version of those that every turn here is made with."""

    def __init__(
        self,
        store: SessionStore,
        mail: Callable[[EffectResult], None],
        wall_clock: Callable[[], float],
        weights: str = "",
    ) -> None:
        self._store = store
        self._mail = mail
        self._wall_clock = wall_clock
        self._weights = weights
        self._turns: queue.SimpleQueue[StoreTurn | None] = queue.SimpleQueue()
        self._others = ThreadPoolExecutor(max_workers=2, thread_name_prefix="remora-store")
        self._committer = threading.Thread(target=self._commit_loop, name="remora-commit", daemon=True)
        self._committer.start()

    def perform(self, effect: Effect) -> None:
        match effect:
            case StoreTurn():
                self._turns.put(effect)
            case LoadSession():
                self._others.submit(self._load, effect)
            case ForgetSession():
                self._others.submit(self._forget, effect)
            case RollBackTurns():
                self._others.submit(self._roll_back, effect)

    @property
    def waiting(self) -> int:
        """Turns that nobody has begun to write."""
        return self._turns.qsize()

    def close(self) -> None:
        """Finish what was asked, then end the threads."""
        self._turns.put(None)
        self._committer.join()
        self._others.shutdown(wait=True)

    def _commit_loop(self) -> None:
        while True:
            first = self._turns.get()
            batch = [first]
            while not self._turns.empty():
                batch.append(self._turns.get())
            turns = [turn for turn in batch if turn is not None]
            if turns:
                self._commit(turns)
            if len(turns) < len(batch):
                return

    def _commit(self, turns: list[StoreTurn]) -> None:
        try:
            commits = [replace(turn.commit, weights=self._weights) for turn in turns]
            statuses = self._store.commit(commits, self._wall_clock())
        except Exception as error:
            failure = _told(f"storing {len(turns)} turns", error)
            for turn in turns:
                self._mail(TurnStored(session=turn.session, uid=turn.uid, error=failure))
            return
        for turn, status in zip(turns, statuses, strict=True):
            stale, full = status is CommitStatus.STALE, status if status in _FULL else None
            self._mail(TurnStored(session=turn.session, uid=turn.uid, stale=stale, full=full))

    def _load(self, effect: LoadSession) -> None:
        try:
            record, turns = self._store.load(effect.tenant, effect.session_id, effect.generation)
            self._mail(SessionLoaded(session=effect.session, record=record, turns=tuple(turns)))
        except SessionUnknown:
            self._mail(SessionLoaded(session=effect.session, record=None))
        except Exception as error:
            failure = _told(f"loading session {effect.session_id!r}", error)
            self._mail(SessionLoaded(session=effect.session, record=None, error=failure))

    def _roll_back(self, effect: RollBackTurns) -> None:
        error, stale = "", False
        try:
            status = self._store.rollback(
                effect.tenant,
                effect.session_id,
                effect.generation,
                epoch=effect.epoch,
                turn=effect.turn,
                now=self._wall_clock(),
            )
            stale = status is CommitStatus.STALE
        except Exception as failure:
            error = _told(f"rolling session {effect.session_id!r} back", failure)
        self._mail(TurnsRolledBack(session=effect.session, ask=effect.ask, turn=effect.turn, stale=stale, error=error))

    def _forget(self, effect: ForgetSession) -> None:
        error, found = "", False
        try:
            found = self._store.close(effect.tenant, effect.session_id, effect.generation, epoch=effect.epoch)
        except Exception as failure:
            error = _told(f"forgetting session {effect.session_id!r}", failure)
        self._mail(SessionForgotten(session=effect.session, error=error, found=found))


def _told(what: str, error: Exception) -> str:
    """The answer to an effect that failed, and a line in the log. Every effect is answered, whatever the store raises:
    a session would wait for ever."""
    if isinstance(error, (StoreError, TurnUnknown)):
        logger.error("%s failed: %s", what, error)
    else:
        logger.error("%s failed", what, exc_info=error)
    return str(error) or "store error"
