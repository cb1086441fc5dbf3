"""What an ingress asks a worker to do for a client."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from actors.messages.words import OnBusy, Reason, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when generation stops.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0, `repetition_penalty` 1 and the other penalties 0 are
    off.
    `seed` names the request's own random stream: token n depends on (seed, n) and the logits alone, so neither
    batching, preemption nor a move to another worker changes it (rule I3).
    `max_tokens` None means "as many as the context allows".
    `logprobs`: how many of the likeliest tokens to tell beside each chosen one's log probability; None: tell none.
    `logprob_ids`: tokens whose log probability is told as well, wherever any is.
    `prompt_logprobs_from`: where in the prompt, a session's history included, the tokens begin whose own log
    probabilities are told, too; None: of no token of the prompt. Needs `logprobs`.
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
    logprobs: int | None = None
    logprob_ids: TokenIds = ()
    prompt_logprobs_from: int | None = None

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
class Notation:
    """How a model writes what is no text of its replies. `calls`: a format's name in `actors.replies.formats`, `tools`:
    those that could be called, as JSON, where the format is read by them. `reasoning`: what stands before and behind
    it; empty: there is none. `marks`: control tokens that count as text, and their text."""

    calls: str
    tools: str = ""
    reasoning: tuple[str, ...] = ()
    marks: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOf:
    """What makes a request a turn: the session it belongs to and the place in it that it continues from.

    `generation` and `epoch` come from the store, by way of the pool's placement: the generation tells two sessions of
    one id apart, the epoch two owners of one session.
    `parent`: rid of the turn to continue from (tree mode). With `from_head` the last committed turn is the parent
    and `parent` is ignored; neither means a new root.
    `create`: the session was opened by this very turn, or may be open without any committed turn (rule S14).
    `whole`: `Submit.root_ids` are a whole conversation, and `input_ids` what of it comes after its last reply. It goes
    on from the turn that is named after `stem` and whose reply reads `reply`, and its reasoning `reasoning` unless that
    is empty; where there is none, it is a new root.
    `behind`: the session's head as the sender knew it, empty for none; should it have gone on since, the turn is
    refused. None: whichever it is.
    `calls`: the tools that the reply calls, each as `actors.replies.alike.canonical_call` has it, in `notation`.
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
    whole: bool = False
    stem: str = ""
    reply: str = ""
    reasoning: str = ""
    calls: tuple[str, ...] = ()
    notation: Notation | None = None
    behind: str | None = None


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
    `batch`: name of the call that this is one part of, empty if it is a call of its own; an abort that names it means
    all parts (rule A2).
    `join`: should a request of this name and body be running, be told what it does (rule T2) instead of being refused.
    `only_join`: and should it not be, do not begin it: the sender looks again where it is, or how it ended.
    `resumed_ids`: output that the client has already, from a worker that was lost; generation goes on behind it, and
    events count from there (rule T4). `resumed_prompt`: the `Tokens.prompt` that it came with.
    `weight`: the tenant's share of the worker beside other tenants that have one; 0 = first come, first served.
    `trace`: the W3C `traceparent` of the ingress's span, for the worker's request log; empty: part of no trace.
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
    batch: str = ""
    idempotent: bool = False
    grammar: Grammar | None = None
    weight: float = 0.0
    join: bool = False
    only_join: bool = False
    resumed_ids: TokenIds = ()
    resumed_prompt: bytes = b""
    trace: str = ""


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
