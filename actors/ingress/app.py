"""The ASGI application: routes around an `Ingress`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from actors.ingress import aborts_api, anthropic_api, service_api, sessions_api, tokens_api
from actors.ingress.access_log import AccessLog, open_access_log
from actors.ingress.auth import Gate
from actors.ingress.core import Ingress
from actors.ingress.edge_limits import AnthropicIds, HeadLimit, cors
from actors.ingress.errors import Invalid
from actors.ingress.exchange import GenerateEndpoint
from actors.ingress.http_io import path_of, request_id_of
from actors.ingress.native_routes import native_routes
from actors.ingress.openai_routes import ChatApi, CompletionApi
from actors.ingress.plain_routes import Handler, error_answer, plain
from actors.ingress.responses.routes import Responses
from actors.ingress.responses.table import response_routes
from actors.ingress.tracing import Tracing


def build_app(ingress: Ingress) -> Starlette:
    """When the server ends the application's lifespan, what still runs ends with `Reason.SHUTDOWN`.

    Raises OSError when the access log cannot be written.
    """

    responses = Responses(ingress)
    path = ingress.config.ingress.access_log
    log = open_access_log(path) if path else None

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await ingress.close()
        await responses.close()
        if log is not None:
            log.close()

    edge = ingress.config.ingress
    middleware = [
        *cors(edge.cors_origins),
        Middleware(AnthropicIds),
        Middleware(HeadLimit, limit_bytes=edge.max_header_bytes),
        Middleware(Gate, ingress=ingress),
    ]
    if log is not None:
        middleware.insert(0, Middleware(AccessLog, handler=log))
    middleware.insert(0, Middleware(Tracing))
    return Starlette(
        routes=[*_routes(ingress), *response_routes(ingress, responses)],
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error},
    )


def _routes(ingress: Ingress) -> list[BaseRoute]:
    def route(path: str, method: str, handler: Handler) -> Route:
        return Route(path, plain(ingress, handler), methods=[method])

    one_session = "/v1/sessions/{session_id:path}"
    return [
        Route("/v1/chat/completions", GenerateEndpoint(ingress, ChatApi()), methods=["POST"]),
        Route("/v1/completions", GenerateEndpoint(ingress, CompletionApi()), methods=["POST"]),
        Route("/v1/messages", GenerateEndpoint(ingress, anthropic_api.MessagesApi()), methods=["POST"]),
        route("/v1/messages/count_tokens", "POST", anthropic_api.count_tokens),
        route("/tokenize", "POST", tokens_api.tokenize),
        route("/detokenize", "POST", tokens_api.detokenize),
        route("/v1/sessions", "POST", sessions_api.open_session),
        route("/v1/sessions", "GET", sessions_api.list_sessions),
        route(f"{one_session}/fork", "POST", sessions_api.fork_session),
        route(f"{one_session}/rollback", "POST", sessions_api.rollback_session),
        route(one_session, "GET", sessions_api.get_session),
        route(one_session, "DELETE", sessions_api.close_session),
        route("/v1/aborts", "POST", aborts_api.abort_requests),
        route("/v1/models", "GET", service_api.list_models),
        route("/v1/models/{model:path}", "GET", service_api.get_model),
        route("/v1/stats", "GET", service_api.stats),
        route("/v1/rollouts", "POST", service_api.rollout),
        route("/health", "GET", service_api.health),
        route("/metrics", "GET", service_api.exposition),
        route("/openapi.json", "GET", service_api.openapi),
        route("/", "GET", service_api.root),
        *native_routes(ingress),
    ]


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the one error body."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    texts = {404: "There is no such route.", 405: "This route does not take this method."}
    codes = {404: "not_found", 405: "method_not_allowed"}
    invalid = Invalid(
        None,
        texts.get(status, "The request cannot be answered."),
        code=codes.get(status, "invalid_value"),
        status=status,
    )
    request_id = request_id_of(request.headers)
    answer = error_answer(invalid, request_id, path_of(request.scope))
    answer.headers["x-request-id"] = request_id
    if isinstance(error, HTTPException) and error.headers:
        answer.headers.update(error.headers)
    return answer
