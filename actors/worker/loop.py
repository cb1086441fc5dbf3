"""The worker's one loop: mail → handle → plan → launch → commit → publish.

With `depth` 0 a step is settled before the next is planned; with 1 the next one is already running by then. There is
no second loop for that: only the number of launched steps that may wait for their commit differs.
"""

from __future__ import annotations

import logging
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


class Loop:
    """Runs on its own thread; the engine and the runner belong to it alone."""

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
        self.stats: EngineStats = engine.snapshot()
        """The engine as it was after the last turn of the loop; replaced, never changed."""

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
        outputs: list[Output] = []
        for letter in letters:
            outputs += self._engine.handle(letter, now)
        for ingress in self._outbox.take_dead():
            logger.warning("ingress %s has stopped polling; its requests end", ingress)
            outputs += self._engine.handle(IngressLost(ingress=ingress), now)
        outputs += self._engine.expire(now)
        self._publish(outputs)
        plan = self._engine.plan(now)
        self._publish(self._engine.take_output())
        self._nothing_to_plan = plan is None and not self._launched
        if plan is not None:
            self._launch(plan)
        if self._launched and (plan is None or len(self._launched) > self._engine.settings.depth):
            self._commit_oldest()
        self.stats = self._engine.snapshot()

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
            self._publish(self._engine.fail(plan, "the step could not be launched", self._clock()))
            return
        self._launched.append((plan, handle))

    def _commit_oldest(self) -> None:
        plan, handle = self._launched.popleft()
        try:
            result = handle.wait()
        except Exception:
            logger.exception("step %d failed", plan.number)
            outputs = self._engine.fail(plan, "the step failed", self._clock())
        else:
            outputs = self._engine.commit(plan, result, self._clock())
        self.progress.step_returned()
        self._publish(outputs)
        if self.check_invariants:
            check(self._engine)

    def _publish(self, outputs: list[Output]) -> None:
        if not outputs:
            return
        events: list[Event] = []
        answered = False
        for output in outputs:
            if type(output) is StepTokens or type(output) is Tokens:
                events.append(output)
            elif isinstance(output, Event):
                events.append(output)
                answered = True
            else:
                self._perform(output)
        if answered:
            self.stats = self._engine.snapshot()  # Before anybody hears of it: who was answered sees it in the stats.
        if events:
            self._outbox.publish(events)
