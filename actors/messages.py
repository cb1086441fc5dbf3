"""Everything that crosses an actor boundary on the data path: frozen dataclasses of ints, strings and tuples.

Requests travel right (`ToWorker`), events travel left (`Event`). `actors.wire` turns both into msgpack.
Fields are only ever appended, each with a default: an older reader ignores what it does not know.

Times are seconds; durations end in `_s`. Token ids are plain ints in tuples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

TokenIds = tuple[int, ...]


class Outcome(str, Enum):
    """How a request ended. Exactly one per request (rule E1)."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Reason(str, Enum):
    """Why a request ended in `Outcome.ABORT`. A closed set (rule E2)."""

    CLIENT_ABORT = "client_abort"
    CLIENT_DISCONNECT = "client_disconnect"
    SUPERSEDED = "superseded"
    SESSION_CLOSED = "session_closed"
    WAITING_TIMEOUT = "waiting_timeout"
    RUNNING_TIMEOUT = "running_timeout"
    DEADLINE = "deadline"
    QUEUE_FULL = "queue_full"
    TOO_LARGE = "too_large"
    SESSION_BUSY = "session_busy"
    SESSION_UNKNOWN = "session_unknown"
    SESSION_EXISTS = "session_exists"
    SESSION_CLOSING = "session_closing"
    SESSION_CAPACITY = "session_capacity"
    PARENT_UNKNOWN = "parent_unknown"
    PARENT_UNFINISHED = "parent_unfinished"
    INVALID = "invalid"
    GRAMMAR_INVALID = "grammar_invalid"
    GRAMMAR_TIMEOUT = "grammar_timeout"
    WORKER_LOST = "worker_lost"
    WORKER_DRAINING = "worker_draining"
    SHUTDOWN = "shutdown"
    INTERNAL = "internal"


class Stage(str, Enum):
    """Where in its life a request was when it ended (rule E2)."""

    INGRESS = "ingress"
    ROUTING = "routing"
    GRAMMAR = "grammar"
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"


class SessionMode(str, Enum):
    """`TREE`: turns name their parent. `STREAMING`: append-only (rule S3)."""

    TREE = "tree"
    STREAMING = "streaming"


class OnBusy(str, Enum):
    """What a turn does when another turn of its session runs (rule S6)."""

    REJECT = "reject"
    QUEUE = "queue"
    SUPERSEDE = "supersede"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when generation stops.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0, `repetition_penalty` 1 and the other penalties 0 are
    off.
    `seed` names the request's own random stream: token n depends on (seed, n) and the logits alone, so neither
    batching, preemption nor a move to another worker changes it (rule I3).
    `max_tokens` None means "as many as the context allows".
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: TokenIds = ()
    ignore_eos: bool = False
    min_tokens: int = 0

    @property
    def penalised(self) -> bool:
        """Whether sampling needs to know the tokens that came before."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


class GrammarKind(str, Enum):
    """What `Grammar.text` is: a JSON Schema; nothing (any JSON object); a regular expression; a grammar in Lark's or
    GBNF's notation; a JSON array of strings to choose from."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    EBNF = "ebnf"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What a request's output must conform to. Two are the same grammar if they are equal: compiled once."""

    kind: GrammarKind
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOf:
    """What makes a request a turn: the session it belongs to and the place in it that it continues from.

    `generation` and `epoch` come from the store, by way of the pool's placement: the generation tells two sessions of
    one id apart, the epoch two owners of one session.
    `parent`: rid of the turn to continue from (tree mode). With `from_head` the last committed turn is the parent
    and `parent` is ignored; neither means a new root.
    `create`: the session was opened by this very turn, or may be open without any committed turn (rule S14).
    """

    session_id: str
    generation: int
    epoch: int
    from_head: bool = True
    parent: str | None = None
    replace: bool = False
    drop_previous_output: bool = False
    offset: int | None = None
    on_busy: OnBusy = OnBusy.REJECT
    create: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """One request for a worker.

    `key` names this *attempt* and is made by the ingress: unique for ever, so late events and late aborts of an
    earlier attempt can never meet a later one. `rid` is the caller's name for the request (or one made for it).
    `input_ids` is the whole prompt, or, in a session with history, what is appended to it.
    `root_ids` replaces `input_ids` when the session turns out to have no history to append to (a chat template
    opens a conversation otherwise than it goes on with one).
    `close_ids` closes the previous message: put before `input_ids` unless the restored context already ends with it
    (a reply cut by `max_tokens` has no end-of-turn token).
    `digest` identifies the body for replay and duplicate checks (rule T2).
    Timeouts are None for "server default", and 0 for "off" where the server allows it.
    `join`: should a request of this name and body be running, be told what it does (rule T2) instead of being refused.
    `only_join`: and should it not be, do not begin it: the sender looks again where it is, or how it ended.
    `resumed_ids`: output that the client has already, from a worker that was lost; generation goes on behind it, and
    events count from there (rule T4). `resumed_prompt`: the `Tokens.prompt` that it came with.
    `weight`: the tenant's share of the worker beside other tenants that have one; 0 = first come, first served.
    """

    key: str
    rid: str
    ingress: str
    tenant: str
    input_ids: TokenIds
    sampling: SamplingParams
    root_ids: TokenIds | None = None
    close_ids: TokenIds = ()
    turn: TurnOf | None = None
    priority: int = 0
    cache_salt: str = ""
    digest: bytes = b""
    waiting_timeout_s: float | None = None
    running_timeout_s: float | None = None
    deadline_s: float | None = None
    parent_key: str = ""
    idempotent: bool = False
    grammar: Grammar | None = None
    weight: float = 0.0
    join: bool = False
    only_join: bool = False
    resumed_ids: TokenIds = ()
    resumed_prompt: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """End requests. Selectors add up; all but `keys` are limited to `tenant` (rules A1, A2).

    `keys`: attempts, exactly (what an ingress sends when a socket closes). `rids`: caller's names, exactly.
    `rid_prefix`: only when asked for. `session_id`: whatever runs or waits in that session.
    """

    tenant: str = "default"
    keys: tuple[str, ...] = ()
    rids: tuple[str, ...] = ()
    session_id: str | None = None
    rid_prefix: str | None = None
    all: bool = False
    reason: Reason = Reason.CLIENT_ABORT
    ask: int = 0
    remember: bool = True
    """Keep a tombstone for rids that are not known here (rule A5). An ingress that asks every worker first asks
    without, and then, for what nobody knew, with: else a rid used again at once could meet a tombstone meant for
    another worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """Tell the owner of a freshly created session about it. Answered by `Reply[SessionInfo]`."""

    tenant: str
    session_id: str
    generation: int
    epoch: int
    mode: SessionMode
    idle_timeout_s: float | None = None
    capacity_tokens: int | None = None
    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseSession:
    """Close a session. Answered by `Reply[SessionClosed]` once its memory is free (rule S9)."""

    tenant: str
    session_id: str
    generation: int
    abort_running: bool = False
    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkSession:
    """Tell the owner of a freshly forked session about it (rule S12). Answered by `Reply[SessionInfo | None]`, while
    its history is still being read; None when that of a later owner or opening is here already.

    `source_id`: what it was forked from; if that lives here too, they share the pages of the tokens that are the same.
    """

    tenant: str
    session_id: str
    generation: int
    epoch: int
    source_id: str
    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackSession:
    """Make `turn` the head of a session, and drop what continues from it (rule S12).

    Answered by `Reply[SessionRolledBack]` once the store has it.
    """

    tenant: str
    session_id: str
    generation: int
    epoch: int
    turn: str
    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSession:
    """Answered by `Reply[SessionInfo | None]`."""

    tenant: str
    session_id: str
    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushCache:
    """Drop the prefix index and the idle sessions' KV. History stays. Answered by `Reply[int]`: pages made free."""

    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Take nothing more that can run elsewhere: requests without a session, and turns of sessions where none runs or
    waits. What runs goes on (rule T5). Answered by `Reply[bool]`; from then on, an idle session stays idle."""

    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveSession:
    """Give up a session that is in memory here and in which nothing runs or waits: another worker is about to own it
    (rules P3, T5). Answered by `Reply[SessionLeft]`, after its KV was copied if that is to come along.

    `parcel`: name to keep its KV under until it is fetched, if it is no larger than `max_kv_bytes`; empty = leave it.
    """

    tenant: str
    session_id: str
    generation: int
    epoch: int
    ask: int = 0
    parcel: str = ""
    max_kv_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveSession:
    """This worker owns a session now, and `parcel` has been brought with KV of it: its first full pages, whose keys of
    16 bytes each are in `keys`. Answered by `Reply[bool]`: whether it was of use."""

    tenant: str
    session_id: str
    generation: int
    epoch: int
    parcel: str
    keys: bytes
    ask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressLost:
    """An ingress stopped polling for longer than its lease: end what it asked for (rule A1)."""

    ingress: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """End every request with `Reason.SHUTDOWN` and accept no more."""

    reason: Reason = Reason.SHUTDOWN


ToWorker = (
    Submit
    | Abort
    | OpenSession
    | CloseSession
    | ForkSession
    | RollbackSession
    | GetSession
    | FlushCache
    | Drain
    | LeaveSession
    | ReceiveSession
    | IngressLost
    | Shutdown
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """New output tokens of a request. `index` is the output position of `ids[0]`: a gap means a lost event.

    `prompt`: with the first tokens of a turn, a digest of the whole prompt that they were made from: who wants to go on
    with them elsewhere has to go on from the same."""

    ingress: str
    key: str
    index: int
    ids: TokenIds
    prompt: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The one terminal event of a request (rule E1). No `Tokens` of this key follow it.

    `matched`: the stop string that ended it, if one did (the text is cut before it). `message` is for people.
    `cached_tokens`: prompt tokens whose KV was there already. `turn`: number of the committed turn, 0 if none.
    `replayed`: the answer is a stored one (rule T2). `redirect`: this worker does not own the session; place it anew.
    """

    ingress: str
    key: str
    outcome: Outcome
    reason: Reason | None = None
    stage: Stage | None = None
    message: str = ""
    matched: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    turn: int = 0
    replayed: bool = False
    redirect: bool = False
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """What introspection says of a session (rule S11). `idle_s`: seconds since its last turn ended.

    `resident_tokens`: positions whose KV is in the cache; `hibernated_tokens`: those with a copy outside it.
    """

    tenant: str
    session_id: str
    generation: int
    epoch: int
    mode: SessionMode
    state: str
    turns: int
    tokens: int
    resident_tokens: int
    idle_s: float
    running_rid: str | None = None
    queued: int = 0
    head: str | None = None
    hibernated_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed:
    """Answer to `CloseSession`: `known` False means there was nothing to close. The rest says what was freed."""

    known: bool
    turns: int = 0
    freed_pages: int = 0
    freed_tokens: int = 0
    error: str = ""
    """The memory is free, but the store could not forget the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRolledBack:
    """Answer to `RollbackSession`. `reason` None: it is done, and `info` is the session as it is now.

    `ask_again`: this worker cannot say yet (the history is being read), or any more (place the session anew).
    """

    reason: Reason | None = None
    message: str = ""
    dropped: int = 0
    info: SessionInfo | None = None
    ask_again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLeft:
    """Answer to `LeaveSession`. `left`: done, and for a while no turn of this epoch is taken in any more.

    `keys`: of the pages in the parcel, 16 bytes each; empty when there is none."""

    left: bool
    keys: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortHit:
    """One request that an abort ended, and where it was then."""

    rid: str
    key: str
    stage: Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortReport:
    """Answer to `Abort` (rule A4)."""

    hit: tuple[AbortHit, ...] = ()
    already_ended: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer to a control message that carried `ask`."""

    ask: int
    value: object = field(default=None)


Event = Tokens | Finished | Reply
