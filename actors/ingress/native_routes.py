"""SGLang's own API: which route does what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.routing import BaseRoute, Route

from actors.ingress import native_control, native_info, native_sessions
from actors.ingress.core import Ingress
from actors.ingress.errors import ApiError
from actors.ingress.exchange import GenerateEndpoint
from actors.ingress.generation import GenerationRequest, read_generation
from actors.ingress.native_answers import HealthVoice, NativeVoice
from actors.ingress.native_request import NativeRequest, read_generate
from actors.ingress.plain_routes import Handler, plain
from actors.ingress.prompts import IdsPrompt
from actors.ingress.text import TextModel
from actors.ingress.voice import Voice
from configs import RemoraConfig

HEALTH_ANSWER_S = 20.0
"""How long one token may take."""


class GenerateApi:
    """POST /generate."""

    def __init__(self, *, incremental: bool) -> None:
        self._incremental = incremental

    def read(
        self, tree: dict[str, Any], headers: Mapping[str, str], text: TextModel, config: RemoraConfig
    ) -> GenerationRequest:
        return read_generate(tree, headers, text=text, config=config)

    def voice(self, request: GenerationRequest, text: TextModel) -> Voice:
        assert isinstance(request, NativeRequest), "another API read this request"
        return NativeVoice(
            [request.part(index)[0] for index in range(request.replies)],
            listed=request.listed,
            incremental=self._incremental,
            logprobs=request.sampling.logprobs is not None,
            token_bytes=text.token_bytes if request.logprob_texts else None,
        )

    def refusal(self, error: ApiError, request_id: str) -> Mapping[str, Any]:
        return error.body(request_id)


class HealthApi:
    """GET /health_generate: whether a worker makes one real token. Counts like any request that generates."""

    def read(
        self, tree: dict[str, Any], headers: Mapping[str, str], text: TextModel, config: RemoraConfig
    ) -> GenerationRequest:
        most_s = config.timeouts.max_deadline_s or HEALTH_ANSWER_S
        body = {"max_tokens": 1, "temperature": 0, "deadline_s": min(HEALTH_ANSWER_S, most_s)}
        request = read_generation(body, {}, (IdsPrompt((0,)),), text=text, config=config, id_prefix="health-")
        return replace(request, affinity=None)

    def voice(self, request: GenerationRequest, text: TextModel) -> Voice:
        return HealthVoice()

    def refusal(self, error: ApiError, request_id: str) -> Mapping[str, Any]:
        return error.body(request_id)


def native_routes(ingress: Ingress) -> list[BaseRoute]:
    def route(path: str, handler: Handler, *methods: str) -> Route:
        return Route(path, plain(ingress, handler), methods=list(methods))

    generate = GenerateApi(incremental=ingress.config.ingress.incremental_streaming_output)
    return [
        Route("/generate", GenerateEndpoint(ingress, generate), methods=["POST"]),
        Route("/health_generate", GenerateEndpoint(ingress, HealthApi(), has_body=False), methods=["GET"]),
        route("/open_session", native_sessions.open_session, "POST"),
        route("/close_session", native_sessions.close_session, "POST"),
        route("/abort_request", native_control.abort_request, "POST"),
        route("/flush_cache", native_control.flush_cache, "GET", "POST"),
        route("/pause_generation", native_control.pause_generation, "POST"),
        route("/continue_generation", native_control.continue_generation, "POST"),
        route("/model_info", native_info.model_info, "GET"),
        route("/get_model_info", native_info.model_info, "GET"),
        route("/server_info", native_info.server_info, "GET"),
        route("/get_server_info", native_info.server_info, "GET"),
    ]
