"""POST /tokenize and /detokenize, with the shapes of vLLM's."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from actors.ingress.chat_messages import read_messages
from actors.ingress.core import Ingress
from actors.ingress.errors import Invalid
from actors.ingress.generation import check_model
from actors.ingress.openai_chat import read_ends
from actors.ingress.plain_routes import JsonAnswer, body_fields
from actors.ingress.prompts import ChatPrompt, PromptSource, TextPrompt
from actors.ingress.template_variables import read_variables
from actors.ingress.text import TextModel
from actors.ingress.tools import read_tools
from actors.ingress.validate import Fields, check_integer


async def tokenize(ingress: Ingress, request: Request) -> Response:
    """{"prompt"} or {"messages"} → {"tokens", "count", "max_model_len", "token_strs"}."""
    fields = await body_fields(ingress, request)
    text = ingress.text
    check_model(fields, text.name)
    source = _source(fields, text)
    wants_texts = fields.flag("return_token_strs")
    with_special = fields.flag("add_special_tokens", True)
    (prompt,) = await ingress.render([source])
    ids = prompt.ids["input_ids"]
    if isinstance(source, TextPrompt) and not with_special:
        ids = ids[len(text.encode("")) :]
    return JsonAnswer(
        {
            "count": len(ids),
            "max_model_len": text.max_context,
            "tokens": ids,
            "token_strs": [_shown(text.token_bytes(token)) for token in ids] if wants_texts else None,
        }
    )


async def detokenize(ingress: Ingress, request: Request) -> Response:
    """{"tokens"} → {"prompt"}: how they are spelled, control tokens too."""
    fields = await body_fields(ingress, request)
    text = ingress.text
    check_model(fields, text.name)
    items = fields.items("tokens", most=text.max_context)
    if items is None:
        raise Invalid("tokens", "`tokens` is missing.", code="missing_required_parameter")
    most = text.vocab_size - 1
    ids = [check_integer(item, f"tokens[{index}]", least=0, most=most) for index, item in enumerate(items)]
    return JsonAnswer({"prompt": _shown(b"".join(map(text.token_bytes, ids)))})


def _source(fields: Fields, text: TextModel) -> PromptSource:
    """Raises Invalid naming the field."""
    plain = fields.text("prompt")
    if plain is not None:
        if fields.raw("messages") is not None:
            raise Invalid("messages", "`prompt` and `messages` cannot be combined.")
        return TextPrompt(plain)
    if fields.raw("messages") is None:
        raise Invalid("prompt", "`prompt` or `messages` is missing.", code="missing_required_parameter")
    if fields.raw("chat_template") is not None:
        raise _unsupported("chat_template", "is not taken: the model's own is used")
    tools, _ = read_tools(fields, text.replies)
    messages = read_messages(fields.raw("messages"))
    return ChatPrompt(messages, tools, read_variables(fields), ends=read_ends(fields, messages))


def _unsupported(name: str, why: str) -> Invalid:
    return Invalid(name, f"`{name}` {why}.", code="unsupported_value")


def _shown(data: bytes) -> str:
    """Pieces of a character are U+FFFD."""
    return data.decode(errors="replace")
