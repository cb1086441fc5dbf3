"""Anthropic's routes: POST /v1/messages, which generates, and POST /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from actors.ingress.anthropic_answers import MessageVoice
from actors.ingress.anthropic_body import read_message, read_prompt
from actors.ingress.core import Ingress
from actors.ingress.error_shapes import anthropic_error
from actors.ingress.errors import ApiError, Invalid
from actors.ingress.generation import GenerationRequest
from actors.ingress.plain_routes import JsonAnswer, body_fields
from actors.ingress.text import TextModel
from actors.ingress.voice import Voice
from configs import RemoraConfig


class MessagesApi:
    """POST /v1/messages."""

    def read(
        self, tree: dict[str, Any], headers: Mapping[str, str], text: TextModel, config: RemoraConfig
    ) -> GenerationRequest:
        return read_message(tree, headers, text=text, config=config)

    def voice(self, request: GenerationRequest, text: TextModel) -> Voice:
        return MessageVoice(request.rid, text.name)

    def refusal(self, error: ApiError, request_id: str) -> Mapping[str, Any]:
        return anthropic_error(error, request_id)


async def count_tokens(ingress: Ingress, request: Request) -> Response:
    """What the same body would make a model read. Not for turns: what a session holds is known to its worker alone."""
    fields = await body_fields(ingress, request)
    if fields.raw("session") is not None:
        raise Invalid("session", "`session` is not supported here: only what is sent is counted.")
    (prompt,) = await ingress.render([read_prompt(fields, ingress.text)])
    return JsonAnswer({"input_tokens": len(prompt.ids["input_ids"])})
