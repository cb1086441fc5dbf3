"""The body of POST /v1/chat/completions → a `GenerationRequest`. Pure: nothing here waits, counts or places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from actors.ingress.chat_messages import read_messages
from actors.ingress.errors import Invalid
from actors.ingress.generation import GenerationRequest, check_model, read_generation, read_session_use
from actors.ingress.logprobs import with_chat_logprobs
from actors.ingress.prompts import ChatPrompt
from actors.ingress.template_variables import read_variables
from actors.ingress.text import TextModel
from actors.ingress.tools import read_tools
from actors.ingress.validate import Fields
from actors.ingress.whole import as_whole
from actors.model.chat_template import Ends
from configs import RemoraConfig

_CONTINUED = "continue_final_message"
_REPLY_BEGINS = "add_generation_prompt"


def read_chat(
    tree: dict[str, Any], headers: Mapping[str, str], *, text: TextModel, config: RemoraConfig
) -> GenerationRequest:
    """Raises Invalid naming the field. `headers` have lower-case names."""
    fields = Fields(tree)
    check_model(fields, text.name)
    _refuse_unsupported(fields)
    tools, demand = read_tools(fields, text.replies)
    messages = read_messages(fields.raw("messages"))
    prompt = ChatPrompt(messages, tools, read_variables(fields), demand=demand, ends=read_ends(fields, messages))
    session = read_session_use(fields, config, chat=True)
    if session is not None and prompt.ends is Ends.BARE:
        raise Invalid(_REPLY_BEGINS, f"`{_REPLY_BEGINS}` must be true in a session: its turns end with replies.")
    request = read_generation(
        tree,
        headers,
        (prompt,),
        text=text,
        config=config,
        id_prefix="chatcmpl-",
        session=session,
    )
    if demand.enforced:
        request = replace(request, grammar_field=demand.field)
    return with_chat_logprobs(as_whole(request, prompt, text.replies), fields)


def read_ends(fields: Fields, messages: Sequence[Mapping[str, Any]]) -> Ends:
    """`continue_final_message` and `add_generation_prompt`, as vLLM and SGLang have them: the first goes on with the
    reply that the client has begun. Raises Invalid."""
    continued = fields.flag(_CONTINUED)
    begins = fields.flag(_REPLY_BEGINS, not continued)
    if not continued:
        return Ends.REPLY if begins else Ends.BARE
    if begins:
        raise Invalid(_CONTINUED, f"`{_CONTINUED}` and `{_REPLY_BEGINS}` cannot both be true.")
    if messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
        raise Invalid(_CONTINUED, f"`{_CONTINUED}` needs the last of the `messages` to be text of the assistant's.")
    return Ends.CONTINUED


def _refuse_unsupported(fields: Fields) -> None:
    """Known fields that this server cannot honour: saying so beats an answer that ignores them."""
    for name, instead in (("functions", "tools"), ("function_call", "tool_choice")):
        if fields.raw(name) not in (None, [], "none"):
            text = f"`{name}` is not supported: it was replaced by `{instead}`."
            raise Invalid(name, text, code="unsupported_value")
    modalities = fields.items("modalities", most=8)
    if modalities and modalities != ["text"]:
        raise Invalid("modalities", "`modalities` must be ['text'].", code="unsupported_value")
