"""The runner's interface: tensors on one side, plans and results on the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    `page_bytes`: size of one page outside the cache, 0 if pages cannot leave it. `kv_format`: what these bytes mean
    (dtype, shape, model); pages go only between runners that say the same.
    `weights`: a name for the model's weights, whatever computes with them: the same prompt has another answer under
    another one.
    `not_taken`: other ways of computing that the runner knows, and why each is not used here.
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
    page_bytes: int = 0
    kv_format: str = ""
    weights: str = ""
    not_taken: Mapping[str, str] = field(default_factory=dict)


class StepHandle(Protocol):
    """A launched step."""

    def wait(self) -> StepResult:
        """Block until the step is done. Call once."""


class PagesRead(Protocol):
    """Pages on their way out of the cache."""

    def wait(self) -> bytes:
        """Block until they are copied: `page_bytes` for each page, in the order they were asked for. Call once."""


class PagesWritten(Protocol):
    """Pages on their way into the cache."""

    def wait(self) -> None:
        """Block until they are there. Call once."""


class ModelRunner(Protocol):
    """Runs plans in the order of launch. Keeps K/V for every page; nothing else outlives a step but the last sampled
    tokens, which `PlanItem.pending` refers to.

    `launch` may return before the work is done; it must have read everything it needs from the plan by then.
    Steps are launched from one thread; pages may be read and written from another, between the steps that run: the
    caller sees to it that nobody writes in a page that is read, or uses one that is written.
    """

    @property
    def info(self) -> RunnerInfo: ...

    @property
    def matchers(self) -> Matchers | None:
        """Where the grammars of constrained requests are opened before their first step. None: it knows none."""

    def launch(self, plan: StepPlan) -> StepHandle: ...

    def read_pages(self, pages: Sequence[int]) -> PagesRead:
        """Copy pages out in the exchange layout [page][layer][K, V][slot][kv head][dim]. Ask for few at a time: there
        are runners that compute no step meanwhile."""

    def write_pages(self, pages: Sequence[int], data: bytes) -> PagesWritten:
        """Put pages back that `read_pages` of a runner of the same `kv_format` gave. ValueError for another length."""

    def close(self) -> None: ...
