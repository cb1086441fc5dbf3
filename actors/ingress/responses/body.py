"""The body of POST /v1/responses → what was asked, and the same in the words that all APIs share. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from actors.ingress.errors import Invalid
from actors.ingress.generation import GenerationRequest, check_model, digest_of, read_generation
from actors.ingress.logprobs import MAX_TOP
from actors.ingress.prompts import ChatPrompt
from actors.ingress.responses.ids import is_conversation
from actors.ingress.responses.items import Item, as_messages, read_input
from actors.ingress.responses.tools import read_tools
from actors.ingress.template_variables import read_variables
from actors.ingress.text import TextModel
from actors.ingress.validate import Fields, check_text, wrong_type
from configs import RemoraConfig

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = frozenset(
    {
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
        "reasoning.encrypted_content",
        LOGPROBS,
    }
)
"""All but the last are of what is never made here: nothing is left out."""
_REFUSED = ("prompt", "context_management", "moderation")
_OF_CHATS = (
    "n",
    "reasoning_effort",
    "max_tokens",
    "max_completion_tokens",
    "response_format",
    "messages",
    "functions",
    "logprobs",
    "top_logprobs",
)
"""Fields of other routes, which this one does not know."""
RENAMED = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.type": "text.format.type",
    "response_format.json_schema": "text.format",
    "response_format.json_schema.name": "text.format.name",
    "response_format.json_schema.strict": "text.format.strict",
    "response_format.json_schema.schema": "text.format.schema",
}
"""Where others speak of a field that has another name here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """`echo`: the fields of the response that repeat the request. `items`: its input."""

    store: bool
    background: bool
    stream: bool
    previous: str | None
    conversation: str | None
    instructions: str | None
    items: list[Item]
    echo: dict[str, Any]


def read_response(
    tree: dict[str, Any], headers: Mapping[str, str], *, text: TextModel, config: RemoraConfig
) -> tuple[Asked, GenerationRequest]:
    """The request has a name and a session only if the caller gave the first. Raises Invalid naming the field."""
    fields = Fields(tree)
    check_model(fields, text.name)
    asked = _read_asked(fields)
    digest = digest_of(tree)
    as_chat = _as_chat(fields, {name: value for name, value in tree.items() if name not in _OF_CHATS})
    tools, demand = read_tools(fields, text.replies)
    try:
        variables = read_variables(Fields(as_chat))
        prompt = ChatPrompt(as_messages(asked.items), tools, variables, field="input", demand=demand)
        request = read_generation(as_chat, headers, (prompt,), text=text, config=config, id_prefix="resp_")
    except Invalid as error:
        raise renamed(error) from None
    if LOGPROBS in (fields.raw("include") or ()):
        sampling = replace(request.sampling, logprobs=asked.echo["top_logprobs"])
        request = replace(request, sampling=sampling, in_parts=True)
    asked.echo["temperature"] = request.sampling.temperature
    asked.echo["top_p"] = fields.number("top_p", 1.0, least=0.0, most=1.0)
    return asked, replace(
        request,
        digest=digest,
        max_tokens_field="max_output_tokens",
        grammar_field=demand.field if demand.enforced else "text.format",
        renamed=RENAMED,
    )


def renamed(error: Invalid) -> Invalid:
    """The error in the words of this route."""
    name = RENAMED.get(error.param or "")
    if name is not None:
        error.message = error.message.replace(f"`{error.param}`", f"`{name}`")
        error.param = name
    return error


def _read_asked(fields: Fields) -> Asked:
    _refuse_unsupported(fields)
    store, background = fields.flag("store", True), fields.flag("background")
    previous, conversation = fields.identifier("previous_response_id"), _conversation(fields)
    for name, given in (("previous_response_id", previous), ("conversation", conversation), ("background", background)):
        if given and not store:
            raise Invalid(name, f"`{name}` needs `store`: what is not stored has no history and cannot be asked for.")
    if previous is not None and conversation is not None:
        raise Invalid("conversation", "`conversation` and `previous_response_id` cannot be combined.")
    instructions = fields.text("instructions")
    return Asked(
        store=store,
        background=background,
        stream=fields.flag("stream"),
        previous=previous,
        conversation=conversation,
        instructions=instructions,
        items=read_input(fields.raw("input")),
        echo={
            "background": background,
            "conversation": {"id": conversation} if conversation is not None else None,
            "instructions": instructions,
            "max_output_tokens": fields.integer("max_output_tokens", least=1),
            "max_tool_calls": fields.integer("max_tool_calls", least=1),
            "metadata": read_metadata(fields) or {},
            "parallel_tool_calls": fields.flag("parallel_tool_calls", True),
            "previous_response_id": previous,
            "prompt_cache_key": fields.text("prompt_cache_key", max_bytes=1024),
            "reasoning": _reasoning(fields),
            "safety_identifier": fields.text("safety_identifier", max_bytes=1024),
            "service_tier": _service_tier(fields),
            "store": store,
            "text": _text(fields),
            "tool_choice": fields.raw("tool_choice") or "auto",
            "tools": fields.items("tools", most=1024) or [],
            "top_logprobs": fields.integer("top_logprobs", least=0, most=MAX_TOP) or 0,
            "truncation": "disabled",
            "user": fields.text("user", max_bytes=1024),
        },
    )


def read_metadata(fields: Fields, name: str = "metadata") -> dict[str, str] | None:
    """Raises Invalid naming the entry."""
    given = fields.raw(name)
    if given is None:
        return None
    if not isinstance(given, dict):
        raise wrong_type(name, "an object", given)
    if len(given) > MAX_METADATA:
        raise Invalid(name, f"`{name}` has {len(given)} entries; at most {MAX_METADATA} are taken.")
    for key, value in given.items():
        shown = key[:MAX_METADATA_KEY]
        if len(key) > MAX_METADATA_KEY:
            raise Invalid(name, f"`{name}` has a key that is longer than {MAX_METADATA_KEY} characters: {shown!r}…")
        text = check_text(value, f"{name}.{shown}")
        if len(text) > MAX_METADATA_VALUE:
            at = f"{name}.{shown}"
            raise Invalid(at, f"`{at}` is longer than {MAX_METADATA_VALUE} characters.", code="string_above_max_length")
    return dict(given)


def check_include(items: list[Any] | None) -> None:
    """Raises Invalid for what is not known, or cannot be had."""
    for number, item in enumerate(items or ()):
        at = f"include[{number}]"
        if check_text(item, at, max_bytes=256) not in _INCLUDABLE:
            raise Invalid(at, f"`{at}` is {item!r}, which cannot be included here.", code="unsupported_value")


def _refuse_unsupported(fields: Fields) -> None:
    """Known fields that this server cannot honour."""
    for name in _REFUSED:
        if fields.raw(name):
            raise Invalid(name, f"`{name}` is not supported.", code="unsupported_value")
    truncation = fields.text("truncation", max_bytes=64)
    if truncation not in (None, "disabled"):
        text = "`truncation` must be 'disabled': the history of a session is never cut unseen."
        raise Invalid("truncation", text, code="unsupported_value")
    check_include(fields.items("include", most=64))


def _conversation(fields: Fields) -> str | None:
    """An id, or an object that has one."""
    name = "conversation"
    if isinstance(fields.raw(name), dict):
        child = fields.child(name)
        assert child is not None
        fields, name = child, "id"
        if fields.raw(name) is None:
            at = fields.at(name)
            raise Invalid(at, f"`{at}` is missing.", code="missing_required_parameter")
    given = fields.identifier(name)
    if given is not None and not is_conversation(given):
        at = fields.at(name)
        raise Invalid(at, f"`{at}` must be the id of a conversation, as POST /v1/conversations makes them.")
    return given


def _reasoning(fields: Fields) -> dict[str, Any]:
    child = fields.child("reasoning")
    told: dict[str, Any] = {"effort": None, "summary": None}
    if child is not None:
        told = {"effort": child.text("effort", max_bytes=64), "summary": child.text("summary", max_bytes=64)}
        child.text("generate_summary", max_bytes=64)
    return told


def _service_tier(fields: Fields) -> str:
    fields.text("service_tier", max_bytes=64)
    return "default"


def _text(fields: Fields) -> dict[str, Any]:
    child = fields.child("text")
    if child is None:
        return {"format": {"type": "text"}}
    verbosity, form = child.text("verbosity", max_bytes=64), child.child("format")
    told = {"format": child.raw("format") if form is not None else {"type": "text"}}
    return told if verbosity is None else {**told, "verbosity": verbosity}


def _as_chat(fields: Fields, tree: dict[str, Any]) -> dict[str, Any]:
    """The body with what this route says in its own way told as chats do."""
    reasoning = fields.child("reasoning")
    if reasoning is not None:
        tree["reasoning_effort"] = reasoning.text("effort", max_bytes=64)
    most = fields.integer("max_output_tokens", least=1)
    if most is not None:
        tree["max_completion_tokens"] = most
    text = fields.child("text")
    form = text.child("format") if text is not None else None
    if form is not None:
        kind = form.text("type", max_bytes=64)
        schema = {name: form.raw(name) for name in ("name", "schema", "strict") if form.has(name)}
        tree["response_format"] = {"type": kind, **({"json_schema": schema} if kind == "json_schema" else {})}
    return tree
