"""Heads that are too large, bodies that do not come, pages of other sites, hostile bodies on every route."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from starlette.routing import Route

from actors.ingress.app import build_app
from actors.ingress.validate import MAX_JSON_DEPTH
from tests.ingress.asgi import Call, Client, run
from tests.ingress.harness import edge
from tests.ingress.keyed import ACME, keys
from tests.ingress.scripted import says

PAGE = "https://chat.example.com"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/models", {"x-a": "b" * 1000}, 200),
        ("/v1/models", {"x-a": "b" * 2048}, 431),
        ("/v1/models", {f"x-{n}": "b" for n in range(400)}, 431),
        ("/v1/models", {"x-request-id": "r" * 2**20}, 431),
        ("/v1/models?" + "q" * 2048, {}, 431),
        ("/v1/models/" + "m" * 2048, {}, 431),
    ],
)
def test_a_head_that_is_too_large_is_refused(path: str, headers: dict[str, str], status: int) -> None:
    """I1, N64: before anything looks at it, in the one error body, which repeats nothing of it."""

    async def check() -> None:
        async with edge(max_header_bytes=2048) as at:
            call = await at.client.start("GET", path, headers=headers).whole()
        assert call.status == status
        if status == 431:
            assert call.json()["error"]["code"] == "headers_too_large"
            assert call.headers["x-request-id"].startswith("req-")
            assert len(call.body) < 500

    run(check())


class Trickle(Call):
    """A client that announces a body and never ends it."""

    async def _receive(self) -> dict[str, Any]:
        if self._incoming:
            return {**self._incoming.pop(0), "more_body": True}
        return await super()._receive()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/sessions", "/tokenize"])
def test_a_body_that_does_not_come_is_not_waited_for(path: str) -> None:
    """I1: and what it held is given back."""

    async def check() -> None:
        async with edge(says("x"), body_timeout_s=0.05) as at:
            call = await Trickle(build_app(at.ingress), "POST", path, b'{"messages": [', {}).whole()
            assert call.status == 408
            assert call.json()["error"]["code"] == "request_timeout"
            assert at.ingress.limiter.usage("default").open == 0
            assert (await at.client.chat().whole()).status == 200

    run(check())


def test_a_client_that_leaves_in_the_middle_of_its_body_is_let_go() -> None:
    """E1: before the timeout, and it counts as one that left."""

    async def check() -> None:
        async with edge(body_timeout_s=30.0) as at:
            call = Trickle(build_app(at.ingress), "POST", "/v1/chat/completions", b"{", {})
            await asyncio.sleep(0)
            call.disconnect()
            await call.whole()
            assert (call.status, call.body) == (0, b"")
            assert at.ends() == {("abort", "client_disconnect", "ingress"): 1}

    run(check())


def test_no_page_of_another_site_may_use_the_api_by_default() -> None:
    async def check() -> None:
        async with edge(says("x")) as at:
            preflight = await at.client.start("OPTIONS", "/v1/chat/completions", headers=PREFLIGHT).whole()
            plain = await at.client.chat(headers={"origin": PAGE}).whole()
        assert preflight.status == 405
        assert not [name for call in (preflight, plain) for name in call.headers if name.startswith("access-control")]

    run(check())


@pytest.mark.parametrize("allowed", [PAGE, "*"])
def test_pages_that_are_named_may(allowed: str) -> None:
    """S13: the browser asks beforehand without a key, and may read errors and streams; no cookie is ever allowed."""

    async def check() -> None:
        async with edge(says("x"), cors_origins=(allowed,), auth=keys()) as at:
            preflight = await at.client.start("OPTIONS", "/v1/chat/completions", headers=PREFLIGHT).whole()
            assert preflight.status == 200
            assert preflight.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
            key = {"authorization": f"Bearer {ACME}", "origin": PAGE}
            told = await at.client.chat(headers=key, stream=True).whole()
            stranger = await at.client.chat(headers={"origin": PAGE}).whole()
            assert (told.status, stranger.status) == (200, 401)
            for call in (preflight, told, stranger):
                assert call.headers["access-control-allow-origin"] == allowed
                assert "access-control-allow-credentials" not in call.headers
            assert "x-request-id" in told.headers["access-control-expose-headers"]

    run(check())


def test_pages_that_are_not_named_may_not() -> None:
    async def check() -> None:
        async with edge(says("x"), cors_origins=(PAGE,)) as at:
            other = {**PREFLIGHT, "origin": "https://evil.example.com"}
            preflight = await at.client.start("OPTIONS", "/v1/chat/completions", headers=other).whole()
            plain = await at.client.chat(headers={"origin": "https://evil.example.com"}).whole()
        assert preflight.status == 400
        assert "access-control-allow-origin" not in {**preflight.headers, **plain.headers}

    run(check())


def nested(levels: int) -> bytes:
    """`{"messages": [[…]]}`."""
    return b'{"messages":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


@pytest.mark.parametrize(
    ("body", "too_deep"),
    [
        (nested(MAX_JSON_DEPTH), False),
        (nested(MAX_JSON_DEPTH + 1), True),
        (nested(1000), True),
        (nested(5000), True),
        (b'{"a":' + b'{"a":' * 300 + b"1" + b"}" * 301, True),
        (b'{"messages":[' + b",".join([b"{}"] * 1000) + b"]}", False),
    ],
)
def test_nesting_has_a_limit_that_is_told(body: bytes, too_deep: bool) -> None:
    """I1, N63: on every route that reads a body, whether or not it looks at what is nested."""

    async def check() -> None:
        async with edge() as at:
            for path in ("/v1/chat/completions", "/v1/messages", "/v1/sessions", "/tokenize"):
                call = await at.client.start("POST", path, body).whole()
                told = f"at most {MAX_JSON_DEPTH} levels" in call.body.decode()
                assert told == too_deep
                assert not told or call.status == 400

    run(check())


FIELDS = [
    "id",
    "model",
    "messages",
    "prompt",
    "tokens",
    "session",
    "stream",
    "rid",
    "rids",
    "turn",
    "input",
    "text",
    "all",
]
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "not json": b"{'a': 1}",
    "not utf-8": b'{"messages": "\xff\xfe"}',
    "a lone surrogate": b'{"messages": [{"role": "user", "content": "\\ud83d"}], "prompt": "\\ud83d"}',
    "nan": b'{"temperature": NaN, "max_tokens": Infinity}',
    "a list": b"[1, 2]",
    "a number": b"1e999",
    "deep": nested(100_000),
    "all wrong": json.dumps({name: {"$ref": ["../../etc/passwd", {"__proto__": None}]} for name in FIELDS}).encode(),
    "all huge": json.dumps(dict.fromkeys([*FIELDS, "max_tokens", "seed", "n", "priority"], 10**400)).encode(),
    "nul": b'{"id": "a\\u0000b", "prompt": "a\\u0000b", "messages": [{"role": "user", "content": "\\u0000"}]}',
}
LEAKS = re.compile(rb"Traceback|File \"|\.py|site-packages|0x[0-9a-f]{6,}|Error\(|Exception|orjson|starlette|passwd")


def every_route() -> list[tuple[str, str]]:
    async def find() -> list[tuple[str, str]]:
        async with edge() as at:
            table = [route for route in build_app(at.ingress).routes if isinstance(route, Route)]
            return [(method, route.path) for route in table for method in sorted(route.methods or ())]

    return run(find())


ROUTES = every_route()


@pytest.mark.parametrize("what", HOSTILE)
def test_no_answer_tells_how_it_is_made(what: str) -> None:
    """I1, E4, N63: no traces, paths, names of exceptions or libraries on any route; errors have the one body; and
    nothing is a 5xx."""

    async def ask(client: Client, method: str, path: str) -> Call:
        filled = re.sub(r"\{\w+(:path)?\}", "..%2f..%2fetc%2fhosts", path)
        return await client.start(method, filled, HOSTILE[what]).whole()

    async def check() -> None:
        async with edge(says("x")) as at:
            for method, path in ROUTES:
                call = await ask(at.client, method, path)
                assert call.status < 500, (method, path, call.body)
                assert not LEAKS.search(call.body.replace(HOSTILE[what], b"")), (method, path, call.body)
                if call.status >= 400 and method != "HEAD":
                    error = call.json()["error"]
                    assert {"message", "type", "code", "param", "reason", "stage", "retryable", "request_id"} <= set(
                        error
                    )

    run(check())
