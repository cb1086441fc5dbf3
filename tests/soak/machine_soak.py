"""The engine machine under Hypothesis, chunk after chunk, with counters."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import seed as seeded
from hypothesis.stateful import invariant, run_state_machine_as_test

from actors.engine.core import Output
from actors.engine.effects import CompileGrammar
from actors.messages import SessionInfo, SessionRolledBack
from tests.engine.driver import Driver
from tests.engine.test_engine_machine import EngineMachine
from tests.sim.tally import engine_tally
from tests.soak.outcome import Soaked, say_progress

EXAMPLES, STEPS = 40, 120
"""Of a chunk."""


class CountingDriver(Driver):
    """Counts what the engine does not."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.counts: Counter[str] = Counter()
        super().__init__(*args, **kwargs)

    def fork(self, *args: Any, **kwargs: Any) -> SessionInfo:
        self.counts["forks"] += 1
        return super().fork(*args, **kwargs)

    def rollback(self, *args: Any, **kwargs: Any) -> SessionRolledBack | None:
        answer = super().rollback(*args, **kwargs)
        self.counts["rollbacks"] += answer is None or answer.reason is None
        return answer

    def _hear(self, outputs: list[Output]) -> None:
        self.counts["grammars compiled"] += sum(isinstance(output, CompileGrammar) for output in outputs)
        super()._hear(outputs)

    def answer_store(self) -> None:
        self.counts["late store answers"] += self.hold_store
        super().answer_store()


class CountingMachine(EngineMachine):
    """Shrinking an example that failed is counted, too."""

    driver_class = CountingDriver
    tally: Counter[str] = Counter()

    @invariant()
    def one_more_step(self) -> None:
        self.tally["machine steps"] += 1

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "driver"):
            self.tally.update(engine_tally(self.driver.engine))
            self.tally.update(self.driver.counts)
            self.tally["runs"] += 1


def soak_machine(seed: int, steps: int) -> Soaked:
    """Run chunks until so many rules have been run."""
    tally, failed = CountingMachine.tally, []
    tally.clear()
    began = time.monotonic()
    number = seed
    while tally["machine steps"] < steps:
        chunk = type(CountingMachine.__name__, (CountingMachine,), {})
        try:
            run_state_machine_as_test(seeded(number)(chunk), settings=_SETTINGS)
        except KeyboardInterrupt:
            return tally, failed
        except Exception as error:  # Whatever it is: it is shown, and counts as a failure.
            failed.append((f"python -m tests.soak --steps 1 --minutes 0 --seed {number}", error))
        number += 1
        began = say_progress(began, f"{tally['machine steps']:,} machine steps, {len(failed)} failures")
    return tally, failed


_SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
