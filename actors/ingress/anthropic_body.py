"""The body of POST /v1/messages → a `GenerationRequest`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from actors.ingress.anthropic_messages import read_conversation
from actors.ingress.anthropic_tools import read_tools
from actors.ingress.errors import Invalid
from actors.ingress.generation import GenerationRequest, check_model, read_generation, read_session_use
from actors.ingress.prompts import ChatPrompt
from actors.ingress.sampling import MAX_STOP_BYTES, MAX_STOPS
from actors.ingress.structured import schema_grammar
from actors.ingress.text import TextModel
from actors.ingress.validate import Fields, check_text
from actors.messages import Grammar
from actors.model.chat_template import Ends
from configs import RemoraConfig

_NOT_HERE = (
    "n",
    "stop",
    "user",
    "response_format",
    "max_completion_tokens",
    "stream_options",
    "logprobs",
    "top_logprobs",
)
"""Fields of the OpenAI API: unknown here, so they are not looked at (rule I1)."""
_SERVER_SIDE = ("container", "mcp_servers")
_THINKING = ("enable_thinking", "thinking")
"""What templates call the variable that switches it."""
_FORMAT = "output_config.format"


def read_message(
    tree: dict[str, Any], headers: Mapping[str, str], *, text: TextModel, config: RemoraConfig
) -> GenerationRequest:
    """Raises Invalid naming the field. `headers` have lower-case names."""
    fields = Fields(tree)
    if fields.integer("max_tokens", least=0) is None:
        raise Invalid("max_tokens", "`max_tokens` is missing.", code="missing_required_parameter")
    prompt = read_prompt(fields, text)
    grammar = _output_format(fields)
    metadata = fields.child("metadata")
    if metadata:
        metadata.text("user_id", max_bytes=1024)
    known = {name: value for name, value in tree.items() if name not in _NOT_HERE}
    request = read_generation(
        {**known, "stop": _stop_sequences(fields)},
        headers,
        (prompt,),
        text=text,
        config=config,
        id_prefix="msg_",
        session=read_session_use(fields, config),
    )
    if prompt.demand.enforced:
        request = replace(request, grammar_field=prompt.demand.field)
    if grammar is None:
        return request
    if request.grammar is not None:
        raise Invalid(_FORMAT, f"`{_FORMAT}` and `{request.grammar_field}` cannot be combined.")
    return replace(request, grammar=grammar, grammar_field=f"{_FORMAT}.schema")


def read_prompt(fields: Fields, text: TextModel) -> ChatPrompt:
    """What the model is to read: of a message, or of one whose tokens are counted. Raises Invalid."""
    check_model(fields, text.name)
    for name in _SERVER_SIDE:
        if fields.raw(name):
            raise Invalid(name, f"`{name}` is not supported.", code="unsupported_value")
    messages = read_conversation(fields.raw("system"), fields.raw("messages"))
    tools, demand = read_tools(fields, text.replies)
    thinking = _thinking(fields)
    if messages[-1]["role"] != "assistant":
        return ChatPrompt(messages, tools, thinking, demand=demand)
    if any(thinking.values()):
        message = "`thinking` comes before the reply; with it, the last of the `messages` cannot be the assistant's."
        raise Invalid("thinking", message)
    return ChatPrompt(messages, tools, thinking, demand=demand, ends=Ends.CONTINUED)


def _thinking(fields: Fields) -> dict[str, Any]:
    """Variables of the template that say whether to think; where nothing is asked for, the template decides. There is
    no budget but `max_tokens`."""
    thinking = fields.child("thinking")
    if thinking is None:
        return {}
    kind = thinking.text("type")
    if kind not in ("enabled", "adaptive", "disabled"):
        at = thinking.at("type")
        raise Invalid(at, f"`{at}` must be one of 'enabled', 'adaptive', 'disabled'.", code="unsupported_value")
    thinking.integer("budget_tokens", least=1)
    return dict.fromkeys(_THINKING, kind != "disabled")


def _output_format(fields: Fields) -> Grammar | None:
    """`output_config.format`, the only part of it that changes anything."""
    config = fields.child("output_config")
    wanted = config.child("format") if config else None
    if wanted is None:
        return None
    if wanted.text("type") != "json_schema":
        at = wanted.at("type")
        raise Invalid(at, f"`{at}` must be 'json_schema'.", code="unsupported_value")
    return schema_grammar(wanted.raw("schema"), wanted.at("schema"))


def _stop_sequences(fields: Fields) -> list[str]:
    sequences = []
    for index, item in enumerate(fields.items("stop_sequences", most=MAX_STOPS) or []):
        at = f"stop_sequences[{index}]"
        if not check_text(item, at, max_bytes=MAX_STOP_BYTES):
            raise Invalid(at, f"`{at}` must not be empty.", code="empty_string")
        sequences.append(item)
    return sequences
