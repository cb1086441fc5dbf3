"""The OpenAI routes that generate: what reads their bodies, and what tells their answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from actors.ingress.errors import ApiError
from actors.ingress.generation import GenerationRequest
from actors.ingress.logprobs import TokenBytes
from actors.ingress.openai_answers import ChatVoice, CompletionVoice, Head
from actors.ingress.openai_chat import read_chat
from actors.ingress.openai_completion import echoes, read_completion
from actors.ingress.text import TextModel
from actors.ingress.voice import Voice
from configs import RemoraConfig


class ChatApi:
    """POST /v1/chat/completions."""

    def read(
        self, tree: dict[str, Any], headers: Mapping[str, str], text: TextModel, config: RemoraConfig
    ) -> GenerationRequest:
        return read_chat(tree, headers, text=text, config=config)

    def voice(self, request: GenerationRequest, text: TextModel) -> Voice:
        return ChatVoice(
            _head(request, text), include_usage=request.include_usage, token_bytes=_token_bytes(request, text)
        )

    def refusal(self, error: ApiError, request_id: str) -> Mapping[str, Any]:
        return error.body(request_id)


class CompletionApi:
    """POST /v1/completions."""

    def read(
        self, tree: dict[str, Any], headers: Mapping[str, str], text: TextModel, config: RemoraConfig
    ) -> GenerationRequest:
        return read_completion(tree, headers, text=text, config=config)

    def voice(self, request: GenerationRequest, text: TextModel) -> Voice:
        return CompletionVoice(
            _head(request, text),
            include_usage=request.include_usage,
            echoes=echoes(request, text),
            token_bytes=_token_bytes(request, text),
        )

    def refusal(self, error: ApiError, request_id: str) -> Mapping[str, Any]:
        return error.body(request_id)


def _token_bytes(request: GenerationRequest, text: TextModel) -> TokenBytes | None:
    return text.token_bytes if request.sampling.logprobs is not None else None


def _head(request: GenerationRequest, text: TextModel) -> Head:
    return Head(request.rid, int(time.time()), text.name)
