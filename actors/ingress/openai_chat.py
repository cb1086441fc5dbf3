"""The body of POST /v1/chat/completions → a `ChatRequest`. Pure: nothing here waits, counts or places."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

from actors.ingress.chat_messages import read_messages
from actors.ingress.errors import Invalid, model_not_found
from actors.ingress.placement import affinity_key
from actors.ingress.routing import SessionUse
from actors.ingress.sampling import max_tokens_field, read_sampling
from actors.ingress.structured import read_grammar
from actors.ingress.text import TextModel
from actors.ingress.validate import Fields, check_choice, check_identifier
from actors.messages import Grammar, OnBusy, SamplingParams, SessionMode
from configs.schema import RemoraConfig

MAX_PRIORITY = 1_000_000
MAX_DURATION_S = 1e9
_NOT_IN_DIGEST = ("stream", "stream_options", "rid", "on_duplicate", "on_worker_lost")


class OnDuplicate(str, Enum):
    """What a request does when one of its name and body runs (rule T2)."""

    REJECT = "reject"
    JOIN = "join"


class OnWorkerLost(str, Enum):
    """What becomes of a request whose worker dies after the first token (rule T4)."""

    ERROR = "error"
    RESUME = "resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A chat request whose every field was checked. `named`: the caller chose `rid` (rule T2).

    `join`: of `on_duplicate`: hear a running request of this name and body, instead of being refused. `resume`: of
    `on_worker_lost`: go on elsewhere when the worker dies (rule T4)."""

    rid: str
    named: bool
    messages: list[dict[str, Any]]
    sampling: SamplingParams
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


def read_chat(
    tree: dict[str, Any], headers: Mapping[str, str], *, text: TextModel, config: RemoraConfig
) -> ChatRequest:
    """Raises Invalid naming the field. `headers` have lower-case names."""
    fields = Fields(tree)
    _check_model(fields, text.name)
    _refuse_unsupported(fields)
    messages = read_messages(fields.raw("messages"))
    named = _rid(fields, headers)
    rid, digest = named or f"chatcmpl-{secrets.token_hex(16)}", _digest(tree)
    options = fields.child("stream_options")
    fields.text("user", max_bytes=1024)
    timeouts = config.timeouts
    grammar, grammar_field = read_grammar(fields)
    return ChatRequest(
        rid=rid,
        named=named is not None,
        messages=messages,
        sampling=read_sampling(
            fields, vocab_size=text.vocab_size, max_context=text.max_context, own_seed=_own_seed(rid, digest)
        ),
        stream=fields.flag("stream"),
        include_usage=options.flag("include_usage") if options else False,
        session=read_session_use(fields, config),
        affinity=affinity_key(
            headers, config.ingress.affinity_headers, fields.text("prompt_cache_key", max_bytes=1024), messages
        ),
        priority=fields.integer("priority", least=-MAX_PRIORITY, most=MAX_PRIORITY) or 0,
        cache_salt=fields.text("cache_salt", max_bytes=1024) or "",
        waiting_timeout_s=_duration(fields, "waiting_timeout_s", timeouts.max_waiting_s),
        running_timeout_s=_duration(fields, "running_timeout_s", timeouts.max_running_s),
        deadline_s=_duration(fields, "deadline_s", timeouts.max_deadline_s),
        max_tokens_field=max_tokens_field(fields),
        digest=digest,
        grammar=grammar,
        grammar_field=grammar_field,
        join=fields.choice("on_duplicate", OnDuplicate, OnDuplicate.REJECT) is OnDuplicate.JOIN,
        resume=fields.choice("on_worker_lost", OnWorkerLost, OnWorkerLost.ERROR) is OnWorkerLost.RESUME,
    )


def read_session_use(fields: Fields, config: RemoraConfig) -> SessionUse | None:
    """Body `session`: identity, asked for explicitly (rule P5)."""
    session = fields.child("session")
    if session is None:
        return None
    session_id = session.identifier("id")
    if session_id is None:
        raise Invalid("session.id", "`session.id` is missing.", code="missing_required_parameter")
    mode = session.raw("mode")
    parent = session.identifier("parent")
    return SessionUse(
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


def read_idle_timeout(fields: Fields, config: RemoraConfig) -> float | None:
    return _duration(fields, "idle_timeout_s", config.sessions.max_idle_timeout_s)


def read_capacity(fields: Fields) -> int | None:
    """`capacity_tokens`: 0 and absent both leave it to the server's default."""
    return fields.integer("capacity_tokens", least=0, most=2**31 - 1) or None


def _check_model(fields: Fields, served: str) -> None:
    name = fields.text("model")
    if name is not None and name != served:
        raise model_not_found(name, served)


def _refuse_unsupported(fields: Fields) -> None:
    """Known fields that this server cannot honour: saying so beats an answer that ignores them."""
    if (fields.integer("n", least=1) or 1) > 1:
        raise Invalid("n", "`n` above 1 is not supported.", code="unsupported_value")
    if fields.flag("logprobs") or fields.integer("top_logprobs", least=0, most=20):
        raise Invalid("logprobs", "`logprobs` are not supported.", code="unsupported_value")
    for name in ("tools", "functions"):
        if fields.items(name, most=1024) and fields.raw("tool_choice") != "none":
            raise Invalid(name, f"`{name}` are not supported.", code="unsupported_value")
    modalities = fields.items("modalities", most=8)
    if modalities and modalities != ["text"]:
        raise Invalid("modalities", "`modalities` must be ['text'].", code="unsupported_value")


def _rid(fields: Fields, headers: Mapping[str, str]) -> str | None:
    rid = fields.identifier("rid")
    key = headers.get("idempotency-key")
    if key is None:
        return rid
    check_identifier(key, "Idempotency-Key")
    if rid is not None and rid != key:
        raise Invalid("rid", "`rid` and the Idempotency-Key header name different requests.")
    return key


def _duration(fields: Fields, name: str, most_s: float) -> float | None:
    """A timeout: 0 is off, unless the server has a maximum (0 for none)."""
    value = fields.optional_number(name, least=0.0, most=most_s or MAX_DURATION_S)
    if value == 0.0 and most_s:
        at = fields.at(name)
        raise Invalid(at, f"`{at}` cannot be switched off here; the maximum is {most_s:g} seconds.")
    return value


def _own_seed(rid: str, digest: bytes) -> int:
    """For a request that names no seed. The same request sent again draws the same tokens: attempts that join each
    other, or go on where another has been, cannot tell two texts (rules T2, T4)."""
    return int.from_bytes(hashlib.blake2b(digest + rid.encode(), digest_size=8).digest(), "big")


def _digest(tree: dict[str, Any]) -> bytes:
    """Says whether two bodies ask for the same thing: streamed or not makes no difference (rule T2)."""
    body = {name: value for name, value in tree.items() if name not in _NOT_IN_DIGEST}
    try:
        canonical = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        raise Invalid(None, "The body is nested too deeply.", code="invalid_json") from None
    return hashlib.blake2b(canonical, digest_size=16).digest()
