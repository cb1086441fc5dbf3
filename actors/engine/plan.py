"""What the engine asks of a runner in one step, and what it hears back. Plain data, nothing else crosses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from actors.messages import SamplingParams, TokenLogprobs

NULL_PAGE = 0
"""Page of zeros: what unused page-table entries name."""
DUMP_PAGE = 1
"""Page that padding writes to."""
NUM_RESERVED_PAGES = 2
PENDING = -1
"""In place of a token that the step launched just before samples."""


@dataclass(slots=True)
class PlanItem:
    """One request's part of a step: compute KV for positions [start, start + count) and perhaps sample one token.

    Nobody changes one. It is not frozen since each request has one in each step, and a frozen one takes three times as
    long to make.

    `tokens`: the ids at these positions. When `pending` is True the last of them is not known yet: it is the token
    that the step launched just before samples for this request, and `tokens` holds the others (count - 1, mostly 0).
    `page_table`: page ids; position p lives in page_table[p // page_size] at offset p % page_size.
    `samples`: whether the last position's logits choose a token. `output_index` is that token's place in the output.
    `constrained`: the request has a grammar, which the runner knows by its uid.
    `scored`: tokens of the prompt whose log probabilities are wanted, in order: the logits before the first of them are
    those of position `scored_at`.
    `seen`: for penalties and grammars only, else None: all known ids of the request so far, prompt first, up to
    `start + count` without a pending one; `prompt_len` says where the output begins.
    """

    uid: int
    start: int
    count: int
    tokens: Sequence[int]
    page_table: Sequence[int]
    samples: bool
    pending: bool
    sampling: SamplingParams
    output_index: int
    prompt_len: int
    seen: Sequence[int] | None = None
    constrained: bool = False
    scored: Sequence[int] = ()
    scored_at: int = 0


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """What stays the same of a request from one decode to the next. `page_table` grows at its end as the request does:
    a runner reads it while it is in `launch`. The other fields are those of `PlanItem`."""

    uid: int
    page_table: Sequence[int]
    sampling: SamplingParams
    prompt_len: int

    def item(self, start: int, token: int = PENDING) -> PlanItem:
        """This request's part of a step by itself."""
        pending = token == PENDING
        tokens = () if pending else (token,)
        index = start + 1 - self.prompt_len
        return PlanItem(
            self.uid, start, 1, tokens, self.page_table, True, pending, self.sampling, index, self.prompt_len
        )


@dataclass(slots=True)
class Decodes:
    """Requests that compute one position each, sample from it, and need nothing else, as columns of equal length.

    `starts`: the position. `tokens`: the id there, or PENDING. Filled once, by who plans."""

    rows: list[DecodeRow] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def items(self) -> Iterator[PlanItem]:
        return map(DecodeRow.item, self.rows, self.starts, self.tokens)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step's work: `decodes`, then `items`, each request in one of them. `number` counts plans of this engine from
    1. Items that are decodes come before prefill chunks."""

    number: int
    items: tuple[PlanItem, ...]
    decodes: Decodes = field(default_factory=Decodes)

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum(item.count for item in self.items)

    def each(self) -> Iterator[PlanItem]:
        """All requests alike, for who would rather not tell them apart: an object for each."""
        yield from self.decodes.items()
        yield from self.items


@dataclass(frozen=True, slots=True)
class StepResult:
    """`sampled[uid]`: the token chosen for each item that samples.

    `failed[uid]`: a request the runner could not compute, with a message; the others of the step are unaffected.
    `dead_ends[uid]`: a request whose grammar allows no token after its output so far, with a message.
    `logprobs[uid]`: of the chosen token, for items that ask for them. `scores[uid]`: the same of each `scored` token.
    """

    sampled: dict[int, int]
    failed: dict[int, str] = field(default_factory=dict)
    dead_ends: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    scores: dict[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
