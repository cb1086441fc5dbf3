"""What the routes other than the streaming ones share: a JSON body in, a JSON answer out, errors as E4 says."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from actors.ingress.core import Ingress
from actors.ingress.error_shapes import error_body
from actors.ingress.errors import GENERIC_INTERNAL, ApiError, weights_gone
from actors.ingress.http_io import ClientGone, path_of, read_body, request_id_of
from actors.ingress.validate import Fields, parse_object
from actors.messages import Reason, Stage
from actors.ports import NoWorker, WeightsGone
from actors.records import StoreError

log = logging.getLogger(__name__)

Handler = Callable[[Ingress, Request], Awaitable[Response]]


class JsonAnswer(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def plain(ingress: Ingress, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """The Starlette endpoint of a handler: every error becomes the one error body."""

    async def endpoint(request: Request) -> Response:
        request_id, path = request_id_of(request.headers), path_of(request.scope)
        try:
            answer = await handler(ingress, request)
        except ApiError as error:
            answer = error_answer(error, request_id, path)
        except WeightsGone as gone:
            answer = error_answer(weights_gone(gone), request_id, path)
        except NoWorker:
            text = "No worker is ready. Please try again."
            answer = error_answer(ApiError(Reason.WORKER_LOST, text, stage=Stage.ROUTING), request_id, path)
        except StoreError as failure:
            log.error("the session store failed: %s", failure)
            text = "The session store cannot be reached. Please try again."
            answer = error_answer(ApiError(Reason.INTERNAL, text, stage=Stage.ROUTING), request_id, path)
        except ClientGone:
            answer = Response(status_code=499)  # Nobody is there to see it.
        except Exception:
            log.exception("%s %s failed", request.method, request.scope.get("route"))
            answer = error_answer(ApiError(Reason.INTERNAL, GENERIC_INTERNAL), request_id, path)
        answer.headers["x-request-id"] = request_id
        return answer

    return endpoint


def error_answer(error: ApiError, request_id: str, path: str = "") -> JsonAnswer:
    return JsonAnswer(error_body(error, request_id, path), error.status, headers=error.headers())


async def body_fields(ingress: Ingress, request: Request, *, optional: bool = False) -> Fields:
    """The body as an object; with `optional` an empty body is an empty object."""
    limits = ingress.config.ingress
    body = await read_body(request.headers, request.receive, limits.max_body_bytes, limits.body_timeout_s)
    if optional and not body.strip():
        return Fields({})
    return Fields(await ingress.reading(len(body), lambda: parse_object(body)))
