"""What a worker's shell does off the loop, on simulated time: the store's calls, copies of KV, compiling grammars.

A call to the store arrives also when its caller has died a moment ago; copies and grammars die with their worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

from actors.engine.effects import (
    CompileGrammar,
    DropKV,
    Effect,
    EffectResult,
    ForgetSession,
    LoadKV,
    LoadSession,
    ReleaseGrammar,
    RollBackTurns,
    SaveKV,
    SessionForgotten,
    SessionLoaded,
    StoreTurn,
    TurnsRolledBack,
    TurnStored,
)
from actors.records import CommitStatus, SessionUnknown, StoreError, TurnUnknown
from actors.runner.toy import ToyRunner
from tests.engine.grammar_desk import GrammarDesk
from tests.engine.kv_desk import KVDesk
from tests.sim.store import SimStore
from tests.sim.timeline import Timeline

LATE_S = 0.1
"""A store that takes so long is late: other turns came and went meanwhile."""


class SimEffects:
    """Delays are seconds; `kv_delay_s` and `grammar_delay_s` are ranges to draw from. `grammar_timeouts` is a chance.

    `kv` and `grammars` are the desks of the hand-driven engine, with the faults that can be ordered there. `pending`
    counts answers still to come, `counts` what happened that the engine does not count.
    """

    def __init__(
        self,
        timeline: Timeline,
        store: SimStore,
        runner: ToyRunner,
        random: Random,
        deliver: Callable[[EffectResult], None],
    ) -> None:
        self.store_delay_s = 0.002
        self.kv_delay_s = (0.002, 0.002)
        self.grammar_delay_s = (0.002, 0.002)
        self.grammar_timeouts = 0.0
        self.kv = KVDesk(runner)
        self.grammars = GrammarDesk(runner.matchers)
        self.pending = 0
        self.counts: Counter[str] = Counter()
        self._timeline = timeline
        self._store = store
        self._random = random
        self._deliver = deliver
        self._over = False

    def stop(self) -> None:
        """The worker is dead."""
        self._over = True

    def perform(self, effect: Effect) -> None:
        match effect:
            case SaveKV() | LoadKV():
                self.kv.take(effect)
                self._later(self._random.uniform(*self.kv_delay_s), self._copied)
            case DropKV():
                self.kv.take(effect)
            case CompileGrammar():
                self.grammars.take(effect)
                self._later(self._random.uniform(*self.grammar_delay_s), self._compiled)
            case ReleaseGrammar():
                self.grammars.release(effect.uid)
            case _:
                self._later(self.store_delay_s / 2, lambda: self._call_store(effect))

    def lose_image(self, session: int, pages: int) -> None:
        """The room is needed for others: only the first pages of an image are kept."""
        self.counts["images lost"] += 1
        self._deliver(self.kv.lose(session, pages))

    @property
    def left(self) -> tuple[int, int, int]:
        """Images, copies and grammars that are still held."""
        return len(self.kv.images), len(self.kv.held), len(self.grammars.open_uids)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _later(self, delay_s: float, happen: Callable[[], None]) -> None:
        self.pending += 1

        def due() -> None:
            self.pending -= 1
            happen()

        self._timeline.after(delay_s, due)

    def _copied(self) -> None:
        if self._over:
            return
        effect = self.kv.held[0]
        verb = "saved" if isinstance(effect, SaveKV) else "loaded"
        self.counts[f"images dropped while {verb}"] += effect.session not in self.kv.images
        self._deliver(self.kv.answer())

    def _compiled(self) -> None:
        if self._over or not self.grammars.held:
            return
        self.counts["grammars compiled"] += 1
        self._deliver(self.grammars.answer(timed_out=self._random.random() < self.grammar_timeouts))

    def _call_store(self, effect: Effect) -> None:
        result = _ask_store(self._store, effect, self._timeline.now)
        self.counts["late store answers"] += self.store_delay_s >= LATE_S
        self._later(self.store_delay_s / 2, lambda: self._deliver(result))


def _ask_store(store: SimStore, effect: Effect, now: float) -> EffectResult:
    """What `actors.worker.store_effects` does, one call at a time."""
    match effect:
        case StoreTurn():
            try:
                status = store.commit([effect.commit], now)[0]
            except StoreError as error:
                return TurnStored(session=effect.session, uid=effect.uid, error=str(error))
            return TurnStored(session=effect.session, uid=effect.uid, stale=status is CommitStatus.STALE)
        case LoadSession():
            try:
                record, turns = store.load(effect.tenant, effect.session_id, effect.generation)
            except SessionUnknown:
                return SessionLoaded(session=effect.session, record=None)
            except StoreError as error:
                return SessionLoaded(session=effect.session, record=None, error=str(error))
            return SessionLoaded(session=effect.session, record=record, turns=tuple(turns))
        case RollBackTurns():
            answer = TurnsRolledBack(session=effect.session, ask=effect.ask, turn=effect.turn)
            place = (effect.tenant, effect.session_id, effect.generation)
            try:
                status = store.rollback(*place, epoch=effect.epoch, turn=effect.turn, now=now)
            except (StoreError, TurnUnknown) as error:
                return replace(answer, error=str(error) or "unknown turn")
            return replace(answer, stale=status is CommitStatus.STALE)
        case ForgetSession():
            try:
                found = store.close(effect.tenant, effect.session_id, effect.generation, epoch=effect.epoch)
            except StoreError as error:
                return SessionForgotten(session=effect.session, error=str(error))
            return SessionForgotten(session=effect.session, found=found)
        case _:
            raise AssertionError(f"nobody performs {effect} here")
