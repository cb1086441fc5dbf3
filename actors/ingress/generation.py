"""What every request for a reply has in common, whichever API it comes by → a `GenerationRequest`. Pure."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import orjson

from actors.ingress.decoding import USUAL, Decoding
from actors.ingress.errors import Invalid, model_not_found
from actors.ingress.placement import affinity_key
from actors.ingress.prompts import PromptSource
from actors.ingress.responses.ids import check_own_session
from actors.ingress.routing import SessionUse
from actors.ingress.sampling import max_tokens_field, read_sampling
from actors.ingress.structured import read_grammar
from actors.ingress.text import TextModel
from actors.ingress.validate import Fields, check_choice, check_identifier
from actors.messages import Grammar, OnBusy, SamplingParams, SessionMode
from configs import RemoraConfig

MAX_PRIORITY = 1_000_000
MAX_DURATION_S = 1e9
MAX_CHOICES = 128
"""Replies to one request: choices times prompts."""
_NOT_IN_DIGEST = ("stream", "stream_options", "rid", "on_duplicate", "on_worker_lost")
_INT64 = 2**63


class OnDuplicate(str, Enum):
    """What a request does when one of its name and body runs (rule T2)."""

    REJECT = "reject"
    JOIN = "join"


class SessionMessages(str, Enum):
    """What the messages of a turn are: those that are new, or the whole conversation."""

    NEW = "new"
    ALL = "all"


class OnWorkerLost(str, Enum):
    """What becomes of a request whose worker dies after the first token (rule T4)."""

    ERROR = "error"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Settings:
    """How replies to a prompt are made and told. `own_seed`: the caller named none. `renamed`: where the caller wrote
    these, by the names that workers complain about."""

    sampling: SamplingParams
    own_seed: bool
    grammar: Grammar | None
    decoding: Decoding = USUAL
    renamed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request whose every field was checked. `named`: the caller chose `rid` (rule T2). `choices`: replies to each
    of the `prompts`.

    `join`: of `on_duplicate`: hear a running request of this name and body, instead of being refused. `resume`: of
    `on_worker_lost`: go on elsewhere when the worker dies (rule T4). `own_seed`: the caller named none.
    `echo`: each reply is to begin with its prompt. `decoding`: how replies are told as text.
    `in_parts`: log probabilities are told with the text that their tokens became.
    `own`: the settings of each prompt, where they are not all `sampling`, `grammar` and `decoding`. `names`: of the
    prompts, where the caller gave each its own. `renamed`: fields that the client knows by other names than workers."""

    rid: str
    named: bool
    prompts: Sequence[PromptSource]
    choices: int
    sampling: SamplingParams
    own_seed: bool
    stream: bool
    include_usage: bool
    session: SessionUse | None
    affinity: str | None
    priority: int
    cache_salt: str
    waiting_timeout_s: float | None
    running_timeout_s: float | None
    deadline_s: float | None
    max_tokens_field: str
    digest: bytes
    grammar: Grammar | None
    grammar_field: str
    join: bool
    resume: bool
    echo: bool = False
    decoding: Decoding = USUAL
    in_parts: bool = False
    own: Sequence[Settings] = ()
    names: Sequence[str] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def replies(self) -> int:
        return self.choices * len(self.prompts)

    def part(self, index: int) -> tuple[str, Settings]:
        """(name, settings) of the reply number `index`. Several replies to one prompt differ in their seeds."""
        prompt, number = divmod(index, self.choices)
        settings = self.own[prompt] if self.own else self._settings
        if self.replies == 1:
            return self.names[0] if self.names else self.rid, settings
        rid = self._name(prompt, number)
        sampling = settings.sampling
        seed = own_seed(rid, self.digest) if settings.own_seed else (sampling.seed + number) % _INT64
        return rid, replace(settings, sampling=replace(sampling, seed=seed))

    @property
    def _settings(self) -> Settings:
        return Settings(self.sampling, self.own_seed, self.grammar, self.decoding)

    def _name(self, prompt: int, number: int) -> str:
        if not self.names:
            return f"{self.rid}_{prompt * self.choices + number}"
        return self.names[prompt] if self.choices == 1 else f"{self.names[prompt]}_{number}"


def read_generation(
    tree: dict[str, Any],
    headers: Mapping[str, str],
    prompts: Sequence[PromptSource],
    *,
    text: TextModel,
    config: RemoraConfig,
    id_prefix: str,
    session: SessionUse | None = None,
) -> GenerationRequest:
    """`headers` have lower-case names. `id_prefix`: of names made here. Raises Invalid naming the field."""
    fields = Fields(tree)
    named = _rid(fields, headers)
    rid, digest = named or f"{id_prefix}{secrets.token_hex(16)}", digest_of(tree)
    options = fields.child("stream_options")
    fields.text("user", max_bytes=1024)
    timeouts, grammar_and_field = config.timeouts, read_grammar(fields)
    request = GenerationRequest(
        rid=rid,
        named=named is not None,
        prompts=prompts,
        choices=fields.integer("n", least=1) or 1,
        sampling=read_sampling(
            fields, vocab_size=text.vocab_size, max_context=text.max_context, own_seed=own_seed(rid, digest)
        ),
        own_seed=fields.raw("seed") is None,
        stream=fields.flag("stream"),
        include_usage=options.flag("include_usage") if options else False,
        session=session,
        affinity=affinity_key(
            headers,
            config.ingress.affinity_headers,
            fields.text("prompt_cache_key", max_bytes=1024),
            prompts[0].opening,
        ),
        priority=fields.integer("priority", least=-MAX_PRIORITY, most=MAX_PRIORITY) or 0,
        cache_salt=fields.text("cache_salt", max_bytes=1024) or "",
        waiting_timeout_s=read_timeout(fields, "waiting_timeout_s", timeouts.max_waiting_s),
        running_timeout_s=read_timeout(fields, "running_timeout_s", timeouts.max_running_s),
        deadline_s=read_timeout(fields, "deadline_s", timeouts.max_deadline_s),
        max_tokens_field=max_tokens_field(fields),
        digest=digest,
        grammar=grammar_and_field[0],
        grammar_field=grammar_and_field[1],
        join=fields.choice("on_duplicate", OnDuplicate, OnDuplicate.REJECT) is OnDuplicate.JOIN,
        resume=fields.choice("on_worker_lost", OnWorkerLost, OnWorkerLost.ERROR) is OnWorkerLost.RESUME,
    )
    _check_choices(request)
    return request


def _check_choices(request: GenerationRequest) -> None:
    if request.session is not None and request.replies > 1:
        raise Invalid("n", "A turn of a session has one reply: `n` must be 1.", code="unsupported_value")
    if request.replies > MAX_CHOICES:
        message = f"This asks for {request.replies} replies; at most {MAX_CHOICES} are given at once."
        raise Invalid("n", message, code="integer_above_max_value")


def read_session_use(fields: Fields, config: RemoraConfig, *, chat: bool = False) -> SessionUse | None:
    """Body `session`: identity, asked for explicitly (rule P5). `chat`: there are messages, and they may be all."""
    session = fields.child("session")
    if session is None:
        return None
    session_id = session.identifier("id")
    if session_id is None:
        raise Invalid("session.id", "`session.id` is missing.", code="missing_required_parameter")
    check_own_session(session_id, "session.id")
    mode = session.raw("mode")
    parent = session.identifier("parent")
    whole = session.choice("messages", SessionMessages, SessionMessages.NEW) is SessionMessages.ALL
    if whole:
        _check_whole(session, chat=chat)
    return SessionUse(
        whole=whole,
        session_id=session_id,
        mode=None if mode is None else check_choice(mode, "session.mode", SessionMode),
        from_head=not session.has("parent"),
        parent=parent,
        replace=session.flag("replace"),
        drop_previous_output=session.flag("drop_previous_output"),
        offset=session.integer("offset", least=-(2**31), most=2**31 - 1),
        on_busy=session.choice("on_busy", OnBusy, OnBusy.REJECT),
        create=session.flag("create"),
        idle_timeout_s=read_idle_timeout(session, config),
        capacity_tokens=read_capacity(session),
    )


def _check_whole(session: Fields, *, chat: bool) -> None:
    """Where a whole conversation goes on is found out, not told."""
    if not chat:
        raise Invalid("session.messages", "`session.messages` belongs to /v1/chat/completions.")
    for name in ("parent", "replace", "drop_previous_output", "offset"):
        if session.raw(name):
            at = session.at(name)
            raise Invalid(at, f"`{at}` cannot be combined with `session.messages`: 'all'.")


def read_idle_timeout(fields: Fields, config: RemoraConfig) -> float | None:
    return read_timeout(fields, "idle_timeout_s", config.sessions.max_idle_timeout_s)


def read_capacity(fields: Fields) -> int | None:
    """`capacity_tokens`: 0 and absent both leave it to the server's default."""
    return fields.integer("capacity_tokens", least=0, most=2**31 - 1) or None


def check_model(fields: Fields, served: str) -> None:
    """Raises Invalid (404) when another model is asked for."""
    name = fields.text("model")
    if name is not None and name != served:
        raise model_not_found(name, served)


def digest_of(tree: dict[str, Any]) -> bytes:
    """Says whether two bodies ask for the same thing: streamed or not makes no difference (rule T2)."""
    body = {name: value for name, value in tree.items() if name not in _NOT_IN_DIGEST}
    try:
        canonical = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        raise Invalid(None, "The body is nested too deeply.", code="invalid_json") from None
    return hashlib.blake2b(canonical, digest_size=16).digest()


def _rid(fields: Fields, headers: Mapping[str, str]) -> str | None:
    rid = fields.identifier("rid")
    key = headers.get("idempotency-key")
    if key is None:
        return rid
    check_identifier(key, "Idempotency-Key")
    if rid is not None and rid != key:
        raise Invalid("rid", "`rid` and the Idempotency-Key header name different requests.")
    return key


def read_timeout(fields: Fields, name: str, most_s: float) -> float | None:
    """A timeout: 0 is off, unless the server has a maximum (0 for none)."""
    value = fields.optional_number(name, least=0.0, most=most_s or MAX_DURATION_S)
    if value == 0.0 and most_s:
        at = fields.at(name)
        raise Invalid(at, f"`{at}` cannot be switched off here; the maximum is {most_s:g} seconds.")
    return value


def own_seed(rid: str, digest: bytes) -> int:
    """For a request that names no seed. The same request sent again draws the same tokens: attempts that join each
    other, or go on where another has been, cannot tell two texts (rules T2, T4)."""
    drawn = int.from_bytes(hashlib.blake2b(digest + rid.encode(), digest_size=8).digest(), "big")
    return drawn & (_INT64 - 1)
