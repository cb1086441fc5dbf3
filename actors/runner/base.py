"""The runner's interface: tensors on one side, plans and results on the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from actors.engine.plan import StepPlan, StepResult
from actors.runner.grammar.matchers import Matchers


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """What a runner tells the engine and people about itself.

    `num_pages` counts the reserved pages too; `max_context` is the longest context in tokens, output included.
    `eos_ids`: tokens that end a reply. `token_bytes(i)` is `vocab_bytes[i]`: the bytes token i stands for, empty for
    control tokens; an empty tuple means that the runner knows no text (stop strings are then refused).
    `no_grammars`: why outputs cannot be held to a grammar; empty if they can.
    """

    name: str
    vocab_size: int
    page_size: int
    num_pages: int
    max_context: int
    eos_ids: frozenset[int]
    vocab_bytes: tuple[bytes, ...] = ()
    description: str = ""
    no_grammars: str = "this runner knows no grammars"


class StepHandle(Protocol):
    """A launched step."""

    def wait(self) -> StepResult:
        """Block until the step is done. Call once."""


class ModelRunner(Protocol):
    """Runs plans in the order of launch. Keeps K/V for every page; nothing else outlives a step but the last sampled
    tokens, which `PlanItem.pending` refers to.

    `launch` may return before the work is done; it must have read everything it needs from the plan by then.
    A runner is used from one thread.
    """

    @property
    def info(self) -> RunnerInfo: ...

    @property
    def matchers(self) -> Matchers | None:
        """Where the grammars of constrained requests are opened before their first step. None: it knows none."""

    def launch(self, plan: StepPlan) -> StepHandle: ...

    def close(self) -> None: ...
