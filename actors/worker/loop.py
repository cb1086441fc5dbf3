"""The worker's one loop: mail → handle → plan → launch → commit → publish.

With `depth` 0 a step is settled before the next is planned; with 1 the next one is already running by then. There is
no second loop for that: only the number of launched steps that may wait for their commit differs.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from actors.engine.core import Output
from actors.engine.effects import Effect
from actors.engine.engine import Engine
from actors.engine.invariants import check
from actors.engine.plan import StepPlan
from actors.engine.stats import EngineStats
from actors.messages import Event, IngressLost, StepTokens, Tokens
from actors.runner.base import ModelRunner, StepHandle
from actors.worker.mailbox import Letter, Mailbox
from actors.worker.outbox import Outbox
from actors.worker.progress import Progress

logger = logging.getLogger("remora.worker")

LEASE_LOOK_S = 0.5
"""How often an idle loop looks for dead ingresses."""
STOP_GRACE_S = 5.0
"""How long a stopping loop waits for the store to answer."""
STOP_LOOK_S = 0.02
STATS_PATIENCE_S = 0.1
"""How long who asks for the stats waits for a verb to end. Most take less than a millisecond; taking in many long
prompts that came at once takes one for each."""


class Loop:
    """Runs on its own thread; the engine and the runner belong to it alone. `stats` is for any thread."""

    def __init__(
        self,
        engine: Engine,
        runner: ModelRunner,
        mailbox: Mailbox,
        outbox: Outbox,
        perform: Callable[[Effect], None],
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._runner = runner
        self._mailbox = mailbox
        self._outbox = outbox
        self._perform = perform
        self._clock = clock
        self._launched: deque[tuple[StepPlan, StepHandle]] = deque()
        self._stop = False
        self._nothing_to_plan = False
        self.check_invariants = False
        self.progress = Progress(clock)
        self._verb = threading.Lock()
        """Held while the engine changes, but never for a step's computation."""
        self._stats = engine.snapshot()

    @property
    def stats(self) -> EngineStats:
        """The engine between two verbs: as it is now, or, when a verb does not end, as it was when somebody asked last.
        Who was answered sees in it what the answer tells of, unless the next verb takes so long."""
        if self._verb.acquire(timeout=STATS_PATIENCE_S):
            try:
                self._stats = self._engine.snapshot()
            finally:
                self._verb.release()
        return self._stats

    def run(self) -> None:
        """Until `stop`; then what came before it is handled, and turns being stored are waited for, for a while."""
        while not self._stop:
            self.turn()
        deadline = self._clock() + STOP_GRACE_S
        self.turn()
        while (self._launched or self._engine.num_live) and self._clock() < deadline:
            self.turn()

    def stop(self) -> None:
        self._stop = True
        self._mailbox.wake()

    def turn(self) -> None:
        """Once around."""
        letters = self._mailbox.drain(self._patience())
        self.progress.begin()
        self._work(letters)
        self.progress.end()

    def _work(self, letters: list[Letter]) -> None:
        now = self._clock()
        self._publish(self._take_in(letters, now))
        with self._verb:
            plan, asked = self._engine.plan(now), self._engine.take_output()
        self._publish(asked)
        self._nothing_to_plan = plan is None and not self._launched
        if plan is not None:
            self._launch(plan)
        if self._launched and (plan is None or len(self._launched) > self._engine.settings.depth):
            self._commit_oldest()

    def _take_in(self, letters: list[Letter], now: float) -> list[Output]:
        """What has come, and what time brings."""
        outputs: list[Output] = []
        with self._verb:
            for letter in letters:
                outputs += self._engine.handle(letter, now)
            for ingress in self._outbox.take_dead():
                logger.warning("ingress %s has stopped polling; its requests end", ingress)
                outputs += self._engine.handle(IngressLost(ingress=ingress), now)
            outputs += self._engine.expire(now)
        return outputs

    def _patience(self) -> float | None:
        """How long to wait for mail: not at all while there is work."""
        if self._launched or self._engine.has_work:
            return 0.001 if self._nothing_to_plan else 0
        deadline = self._engine.next_deadline()
        waits = [LEASE_LOOK_S] if self._outbox.has_peers else []
        if self._stop:
            waits.append(STOP_LOOK_S)
        if deadline is not None:
            waits.append(max(0.001, deadline - self._clock()))
        return min(waits, default=None)

    def _launch(self, plan: StepPlan) -> None:
        try:
            handle = self._runner.launch(plan)
        except Exception:
            logger.exception("step %d could not be launched", plan.number)
            while self._launched:
                self._commit_oldest()
            with self._verb:
                outputs = self._engine.fail(plan, "the step could not be launched", self._clock())
            self._publish(outputs)
            return
        self._launched.append((plan, handle))

    def _commit_oldest(self) -> None:
        plan, handle = self._launched.popleft()
        try:
            result = handle.wait()
        except Exception:
            logger.exception("step %d failed", plan.number)
            with self._verb:
                outputs = self._engine.fail(plan, "the step failed", self._clock())
        else:
            with self._verb:
                outputs = self._engine.commit(plan, result, self._clock())
        self.progress.step_returned()
        self._publish(outputs)
        if self.check_invariants:
            check(self._engine)

    def _publish(self, outputs: list[Output]) -> None:
        if not outputs:
            return
        events: list[Event] = []
        for output in outputs:
            if type(output) is StepTokens or type(output) is Tokens or isinstance(output, Event):
                events.append(output)
            else:
                self._perform(output)
        if events:
            self._outbox.publish(events)
