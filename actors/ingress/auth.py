"""Who may call what (rule S13). The gate stands before every route: what it lets pass carries its caller.

A route is closed unless it is named here, so that one added later cannot be forgotten. What belongs to a tenant is then
only ever asked for under `caller_of(scope).tenant`: another tenant's session or rid is as unknown as one never made.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from actors.ingress.core import DEFAULT_TENANT, Ingress
from actors.ingress.error_shapes import error_body
from actors.ingress.errors import ApiError, Invalid
from actors.ingress.http_io import path_of, request_id_of, send_json
from actors.ingress.keyring import Caller

OPEN_PATHS = frozenset({"/health", "/healthz", "/livez", "/readyz", "/ping"})
"""Asked by balancers and kubelets, which have no key. These say nothing about tenants."""
STATS_PATHS = frozenset({"/metrics", "/v1/stats"})
"""About all tenants: `auth.stats_access` says for whom."""

EVERYBODY = Caller(DEFAULT_TENANT, admin=True)
"""The caller where no keys are asked for."""
_NOBODY = Caller("")
_CALLER = "remora.caller"
_BEARER = "bearer "
_POLICY_VIOLATION = 1008


class Gate:
    """ASGI middleware: 401 without a good key. Also the only place that reads one."""

    def __init__(self, app: ASGIApp, ingress: Ingress) -> None:
        self._app = app
        self._ingress = ingress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or await self._admits(scope, send):
            await self._app(scope, receive, send)

    async def _admits(self, scope: Scope, send: Send) -> bool:
        """Whether the request goes on, with its caller; if not, it has its answer."""
        headers = Headers(scope=scope)
        try:
            scope[_CALLER] = await self._caller(path_of(scope), headers)
        except ApiError as error:
            if scope["type"] == "http":
                request_id = request_id_of(headers)
                headers_of = {"x-request-id": request_id, **error.headers()}
                await send_json(send, error.status, error_body(error, request_id, path_of(scope)), headers_of)
            else:
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return False
        return True

    async def _caller(self, path: str, headers: Headers) -> Caller:
        """Raises ApiError."""
        ingress = self._ingress
        if not ingress.keys.required:
            return EVERYBODY
        access = ingress.config.auth.stats_access
        if path in OPEN_PATHS or (path in STATS_PATHS and access == "open"):
            return _NOBODY
        await ingress.keys.refresh()
        key = presented_key(headers)
        caller = ingress.keys.find(key)
        if caller is None:
            ingress.metrics.keys_refused.labels("unknown" if key else "missing").inc()
            raise _no_key() if not key else _wrong_key()
        return caller


def presented_key(headers: Headers) -> bytes:
    """`Authorization: Bearer …`, or `x-api-key` as Anthropic's clients send it. Empty when there is none."""
    given = headers.get("authorization", "")
    if given[: len(_BEARER)].lower() == _BEARER:
        return given[len(_BEARER) :].strip().encode("latin-1")
    return headers.get("x-api-key", "").strip().encode("latin-1")


def caller_of(scope: Scope) -> Caller:
    """Who asks. A request that did not come through the gate is a KeyError, never somebody."""
    caller: Caller = scope[_CALLER]
    return caller


def find_caller(scope: Scope) -> Caller | None:
    """Who asks, as far as is known: for the access log."""
    return scope.get(_CALLER)


def sees_all(ingress: Ingress, request: Request) -> bool:
    """Whether this caller may read what concerns all tenants."""
    return ingress.config.auth.stats_access != "admin" or caller_of(request.scope).admin


def require_admin(caller: Caller, what: str) -> None:
    """Raises ApiError (403) unless the key is an operator's."""
    if not caller.admin:
        message = f"{what} takes a key with `admin`."
        raise Invalid(None, message, code="insufficient_permissions", status=403)


def _no_key() -> ApiError:
    message = "No API key was given. Send it as `Authorization: Bearer KEY`, or in `x-api-key`."
    return _unauthorised(message)


def _wrong_key() -> ApiError:
    return _unauthorised("The API key is not known here.")


def _unauthorised(message: str) -> ApiError:
    error = Invalid(None, message, code="invalid_api_key", status=401)
    error.extra_headers["www-authenticate"] = "Bearer"
    return error
