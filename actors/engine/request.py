"""A request: identity, tokens, progress, and the table of its states."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from actors.engine.context import Context
from actors.engine.kv.keys import PrefixKeys
from actors.engine.plan import DecodeRow
from actors.messages import Outcome, PromptScore, Reason, SamplingParams, Stage, Submit, TokenLogprobs

if TYPE_CHECKING:
    from actors.engine.sessions import Session
    from actors.engine.stop_strings import StopStrings
    from actors.engine.turns import Turn


NO_KEYS = PrefixKeys(b"", (), 1)
"""Of a request that has no prompt yet."""
NO_ROW = DecodeRow(-1, (), SamplingParams(), 0)
"""Of a request that has not decoded yet."""


Order = tuple[int, float, int]


class Awaited(NamedTuple):
    """Another request, by uid, that computes the first `tokens` of one that has `todo` tokens to compute."""

    uid: int
    tokens: int
    todo: int


NOBODY = Awaited(0, 0, 0)


class RequestState(Enum):
    """Where a request is in its life.

    ARRIVED: being looked at, or waiting for its session to be loaded or for the turn before it.
    WAITING_GRAMMAR: its grammar is being compiled.
    WAITING: in the queue (also after a preemption). PREFILL, DECODE: in the batch.
    WAITING_KV: it was about to start, and its session's hibernated KV is being read.
    COMMITTING: its end is decided and the store is being told. STOPPING: ended, but a step in flight names its pages.
    """

    ARRIVED = "arrived"
    WAITING_GRAMMAR = "waiting_grammar"
    WAITING = "waiting"
    WAITING_KV = "waiting_kv"
    PREFILL = "prefill"
    DECODE = "decode"
    COMMITTING = "committing"
    STOPPING = "stopping"
    ENDED = "ended"


TRANSITIONS: dict[RequestState, frozenset[RequestState]] = {
    RequestState.ARRIVED: frozenset(
        {RequestState.WAITING_GRAMMAR, RequestState.WAITING, RequestState.COMMITTING, RequestState.ENDED}
    ),
    RequestState.WAITING_GRAMMAR: frozenset({RequestState.WAITING, RequestState.ENDED}),
    RequestState.WAITING: frozenset({RequestState.PREFILL, RequestState.WAITING_KV, RequestState.ENDED}),
    RequestState.WAITING_KV: frozenset({RequestState.WAITING, RequestState.ENDED}),
    RequestState.PREFILL: frozenset(
        {
            RequestState.DECODE,
            RequestState.WAITING,
            RequestState.COMMITTING,
            RequestState.STOPPING,
            RequestState.ENDED,
        }
    ),
    RequestState.DECODE: frozenset(
        {RequestState.WAITING, RequestState.COMMITTING, RequestState.STOPPING, RequestState.ENDED}
    ),
    RequestState.COMMITTING: frozenset({RequestState.STOPPING, RequestState.ENDED}),
    RequestState.STOPPING: frozenset({RequestState.ENDED}),
    RequestState.ENDED: frozenset(),
}


class IllegalTransition(Exception):
    """A move that the table does not know. Carries the request's story."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a request is to end. `matched`: the stop string that did it."""

    outcome: Outcome
    reason: Reason | None = None
    message: str = ""
    matched: str | None = None
    param: str | None = None

    @classmethod
    def abort(cls, reason: Reason, message: str = "", param: str | None = None) -> Verdict:
        return cls(Outcome.ABORT, reason, message, param=param)


Scope = tuple[str, int, int]
"""A session's id, generation and epoch."""


def scope_of(submit: Submit) -> Scope | None:
    """The session that a turn was sent to, as its sender knew it; None for a stateless request."""
    turn = submit.turn
    return (turn.session_id, turn.generation, turn.epoch) if turn else None


@dataclass(frozen=True, slots=True)
class Follower:
    """Another attempt of the same request that is told all that the first is (rule T2), `told` tokens of which it had
    heard before."""

    ingress: str
    key: str
    told: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """One attempt, from `Submit` to its terminal event.

    Progress is three numbers over positions: `computed` (KV valid, by committed steps) ≤ `planned` (covered by launched
    steps) ≤ len(tokens) + `pending_samples` (known tokens, and those that steps in flight will choose).
    """

    uid: int
    submit: Submit
    arrived_at: float
    state: RequestState = RequestState.ARRIVED
    tokens: list[int] = field(default_factory=list)
    context: Context = field(default_factory=lambda: Context([]))
    """Of which `tokens` is the list, once it has a prompt."""
    prompt_len: int = 0
    max_tokens: int = 0
    computed: int = 0
    planned: int = 0
    inflight: int = 0
    """Uncommitted plans that name this request. Only `plan` raises it, only `commit` lowers it."""
    cached_tokens: int | None = None
    """Prompt tokens found in the cache when it first ran. None: it has not run."""
    first_forward_at: float | None = None
    began_step: int = 0
    """Number of the last plan before it came into the batch."""
    preemptions: int = 0
    furthest: int = 0
    """One past the last position that had been planned when it was preempted."""
    preempt_wanted: bool = False
    verdict: Verdict | None = None
    turn: Turn | None = None
    parked_in: Session | None = None
    """The session in whose queue it waits (state ARRIVED)."""
    takes_over: bool = False
    """It is parked only until what it came to supersede or replace has been stored."""
    fair_start: float = 0.0
    """Its place among the requests of other tenants (rule P7); 0 without weights."""
    keys: PrefixKeys = NO_KEYS
    stops: StopStrings | None = None
    ends: frozenset[int] = frozenset()
    """Tokens that end it: EOS, unless that is to be ignored, and its own stop tokens."""
    row: DecodeRow = NO_ROW
    """Its part of a step, as long as it decodes. Only the planner sets it and the two below to anything but nothing."""
    decodes_until: int = 0
    """Positions below this one may be planned one after the other without asking anything: there are pages for them,
    and more tokens are wanted. 0: ask."""
    plain: bool = False
    """It decodes, and a token of it only has to be appended, told to one listener, and looked for in `ends`."""
    grammar_asked: bool = False
    """The shell was asked to compile its grammar, and has to be told when the request is over."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of the last output tokens: of all that were made here, where they are asked for."""
    scored: int = 0
    """Where in the prompt the next token stands whose log probability is to be told; `prompt_len`: there is none."""
    scores: list[PromptScore] = field(default_factory=list)
    """What was told of the prompt."""
    awaits: Awaited = NOBODY
    """Whom it lets compute what both begin with."""
    followers: list[Follower] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    sampling: SamplingParams = field(init=False)
    penalised: bool = field(init=False)
    """Of `submit`, which may change hands but not in these: every step asks for them."""

    def __post_init__(self) -> None:
        self.sampling = self.submit.sampling
        self.penalised = self.sampling.penalised

    @property
    def attempts(self) -> list[tuple[str, str]]:
        """(key, ingress) of all who are told of it."""
        told = [(follower.key, follower.ingress) for follower in self.followers]
        return [(self.submit.key, self.submit.ingress), *told]

    @property
    def rid_key(self) -> tuple[str, str]:
        return (self.submit.tenant, self.submit.rid)

    @property
    def names(self) -> list[tuple[str, str]]:
        """What an abort may call it by: its own name, and that of the batch it belongs to."""
        submit = self.submit
        return [self.rid_key] if submit.batch in ("", submit.rid) else [self.rid_key, (submit.tenant, submit.batch)]

    @property
    def called(self) -> str:
        """What its client calls it. Turns that bring a whole conversation have names of our own beside."""
        submit = self.submit
        return submit.batch if submit.turn is not None and submit.turn.whole and submit.batch else submit.rid

    @property
    def scope(self) -> Scope | None:
        """Within what its name is its own."""
        return scope_of(self.submit)

    @property
    def order(self) -> Order:
        """Position in every queue: higher priority first, then fair shares, then order of arrival."""
        return (-self.submit.priority, self.fair_start, self.uid)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    @property
    def pending_samples(self) -> int:
        """Tokens that steps in flight will choose. The last position planned chooses one, and then the next position
        is planned: so these are as many as are planned beyond the known ones."""
        return max(0, self.planned + 1 - len(self.tokens)) if self.max_tokens else 0

    @property
    def remaining(self) -> int:
        """Positions that could be computed in the next step."""
        return len(self.tokens) + self.pending_samples - self.planned

    @property
    def reusable(self) -> int:
        """How many of its tokens may be found computed: the logits of the last one are wanted, and so are those before
        each token of the prompt that is to be scored."""
        last = len(self.tokens) - 1
        return min(last, max(0, self.scored - 1)) if self.scored < self.prompt_len else last

    @property
    def is_live(self) -> bool:
        """Whether its terminal event is still to come."""
        return self.state not in (RequestState.STOPPING, RequestState.ENDED)

    @property
    def can_be_aborted(self) -> bool:
        return self.is_live and self.state is not RequestState.COMMITTING

    @property
    def stage(self) -> Stage:
        if self.state is RequestState.WAITING_GRAMMAR:
            return Stage.GRAMMAR
        if self.state is RequestState.PREFILL:
            return Stage.PREFILL
        if self.state in (RequestState.DECODE, RequestState.COMMITTING):
            return Stage.DECODE
        return Stage.PREEMPTED if self.preemptions else Stage.WAITING

    def move(self, to: RequestState, cause: str, now: float) -> None:
        """Change state, or raise IllegalTransition with everything that happened before."""
        self.story.append(f"{now:.3f} {self.state.value} -> {to.value}: {cause}")
        if to not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"request {self.submit.rid!r} (uid {self.uid}):\n  " + "\n  ".join(self.story))
        self.state = to
        self.ask_again()

    def ask_again(self) -> None:
        """Something has changed: the planner has to look at it before it goes on decoding."""
        self.decodes_until, self.plain = 0, False
