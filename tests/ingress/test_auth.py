"""Keys: who gets in, as whom, and what everybody else is told."""

from __future__ import annotations

from typing import Any

import pytest

from actors.ingress.auth import Gate
from actors.ingress.metrics import Metrics
from configs import TenantLimits
from configs.keys import fingerprint
from tests.ingress.asgi import Call, run
from tests.ingress.harness import edge
from tests.ingress.keyed import ACME, ACME_TOO, GLOBEX, OPS, Keyed, keys
from tests.ingress.scripted import nothing, says

BAD = [
    ({}, "missing"),
    ({"authorization": "Bearer rmk-nobody"}, "unknown"),
    ({"authorization": "Bearer "}, "missing"),
    ({"authorization": "Bearer"}, "missing"),
    ({"authorization": ACME}, "missing"),
    ({"authorization": f"Basic {ACME}"}, "missing"),
    ({"authorization": f"Bearer {ACME[:-1]}"}, "unknown"),
    ({"authorization": f"Bearer {ACME}x"}, "unknown"),
    ({"authorization": f"Bearer {fingerprint(ACME.encode())}"}, "unknown"),
    ({"authorization": f"Bearer {'x' * 10_000}"}, "unknown"),
    ({"authorization": "Bearer ü"}, "unknown"),
    ({"x-api-key": "rmk-nobody"}, "unknown"),
    ({"x-api-key": ""}, "missing"),
    ({"authorization": "Bearer rmk-nobody", "x-api-key": ACME}, "unknown"),
]
GOOD = [
    {"authorization": f"Bearer {ACME}"},
    {"authorization": f"bearer  {ACME}"},
    {"x-api-key": ACME},
    {"x-api-key": ACME, "authorization": "Basic eDp5"},
]


def text_of(metrics: Metrics) -> str:
    return metrics.exposition().decode()


@pytest.mark.parametrize(("headers", "why"), BAD)
def test_without_a_good_key_nothing_is_answered(headers: dict[str, str], why: str) -> None:
    """S13, E4: 401 in the one error body, as the OpenAI clients know it; nothing reaches a worker or the pool."""

    async def check() -> None:
        async with edge(nothing, auth=keys()) as at:
            calls = [at.client.chat(headers=headers), at.client.start("GET", "/v1/sessions", headers=headers)]
            for call in calls:
                await call.whole()
                error = call.json()["error"]
                assert call.status == 401
                assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
                assert (error["reason"], error["retryable"]) == ("invalid", False)
                assert error["request_id"] == call.headers["x-request-id"]
                assert call.headers["www-authenticate"] == "Bearer"
                assert call.headers["x-should-retry"] == "false"
                assert "rmk-" not in call.body.decode()
            assert at.worker.submits == []
            assert f'remora_keys_refused_total{{why="{why}"}} 2.0' in text_of(at.ingress.metrics)
            assert "rmk-" not in text_of(at.ingress.metrics)

    run(check())


@pytest.mark.parametrize("headers", GOOD)
def test_a_good_key_names_the_tenant(headers: dict[str, str]) -> None:
    """S13: in `Authorization`, or in `x-api-key` as Anthropic's clients send it."""

    async def check() -> None:
        async with edge(says("hi"), auth=keys()) as at:
            call = await at.client.chat(headers=headers).whole()
            assert call.status == 200
            assert at.worker.submits[0].tenant == "acme"

    run(check())


def test_several_keys_are_one_tenant() -> None:
    """S13."""

    async def check() -> None:
        async with edge(says("hi"), auth=keys()) as at:
            for key in (ACME, ACME_TOO, GLOBEX):
                assert (await Keyed(at.ingress, key).chat().whole()).status == 200
            assert [submit.tenant for submit in at.worker.submits] == ["acme", "acme", "globex"]

    run(check())


def test_without_keys_everybody_is_the_default_tenant() -> None:
    """S13: an Authorization header means nothing then."""

    async def check() -> None:
        async with edge(says("hi")) as at:
            for headers in ({}, {"authorization": "Bearer none"}, {"x-api-key": "none"}):
                assert (await at.client.chat(headers=headers).whole()).status == 200
            assert {submit.tenant for submit in at.worker.submits} == {"default"}
            assert (await at.client.post("/v1/aborts", {"all": True})).status == 200
            assert (await at.client.get("/v1/stats")).json()["workers"]

    run(check())


def test_health_takes_no_key() -> None:
    async def check() -> None:
        async with edge(auth=keys()) as at:
            assert (await at.client.get("/health")).status == 200
            for path in ("/", "/v1/models", "/health/", "//health", "/nowhere", "/health/../v1/sessions", "/Health"):
                assert (await at.client.get(path)).status == 401

    run(check())


def test_a_body_without_a_key_is_not_even_read() -> None:
    """I1: strangers cannot make the server swallow megabytes."""

    async def check() -> None:
        async with edge(auth=keys()) as at:
            call = at.client.chat("x" * 20_000_000)
            await call.whole()
            assert call.status == 401
            assert call.unread

    run(check())


def test_a_websocket_without_a_key_is_closed() -> None:
    """S13: there is no such route, but one added later must not be open."""

    async def check() -> None:
        async with edge(auth=keys()) as at:
            sent: list[dict[str, Any]] = []

            async def send(message: dict[str, Any]) -> None:
                sent.append(message)

            async def inner(scope: Any, receive: Any, send: Any) -> None:
                await send({"type": "websocket.accept"})

            for given in (b"Bearer rmk-nobody", f"Bearer {ACME}".encode()):
                scope = {"type": "websocket", "path": "/x", "root_path": "", "headers": [(b"authorization", given)]}
                await Gate(inner, at.ingress)(scope, nothing, send)
            assert [message["type"] for message in sent] == ["websocket.close", "websocket.accept"]

    run(check())


@pytest.mark.parametrize(
    ("access", "key", "sees"),
    [
        ("admin", None, 401),
        ("admin", ACME, "own"),
        ("admin", OPS, "all"),
        ("key", None, 401),
        ("key", ACME, "all"),
        ("open", None, "all"),
        ("open", "rmk-nobody", "all"),
    ],
)
def test_who_sees_the_stats_of_all(access: str, key: str | None, sees: object) -> None:
    """S13: a tenant sees its own use; what concerns all takes a key with `admin`, unless the settings say otherwise."""

    async def check() -> None:
        limits = {"acme": TenantLimits(concurrent_requests=3)}
        async with edge(auth=keys(stats_access=access), tenants=limits) as at:
            client = at.client if key is None else Keyed(at.ingress, key)
            stats, metrics = await client.get("/v1/stats"), await client.get("/metrics")
            if sees == "all":
                assert "workers" in stats.json()
                assert metrics.status == 200
            elif sees == "own":
                assert list(stats.json()) == ["tenant"]
                assert stats.json()["tenant"]["name"] == "acme"
                assert stats.json()["tenant"]["limits"]["concurrent_requests"] == 3
                assert (metrics.status, metrics.json()["error"]["code"]) == (403, "insufficient_permissions")
            else:
                assert (stats.status, metrics.status) == (401, 401)

    run(check())


def test_a_rollout_is_for_operators() -> None:
    """T5, S13: it is begun once for each time that it is asked for, and answered at once."""

    async def check() -> None:
        async with edge(auth=keys()) as at:
            refused = await Keyed(at.ingress, ACME).post("/v1/rollouts", {})
            assert (refused.status, refused.json()["error"]["code"]) == (403, "insufficient_permissions")
            assert at.pool.rollouts == 0
            begun = await Keyed(at.ingress, OPS).post("/v1/rollouts", {})
            assert (begun.status, begun.json()) == (202, {"object": "rollout", "state": "running", "stale_workers": 1})
            assert at.pool.rollouts == 1

    run(check())


def test_aborting_everything_takes_an_admin_key() -> None:
    """A1, S13."""

    async def check() -> None:
        async with edge(auth=keys()) as at:
            refused = await Keyed(at.ingress, ACME).post("/v1/aborts", {"all": True, "rid": "x"})
            assert (refused.status, refused.json()["error"]["code"]) == (403, "insufficient_permissions")
            assert at.worker.aborts == []
            assert (await Keyed(at.ingress, OPS).post("/v1/aborts", {"all": True})).status == 200
            assert [(abort.tenant, abort.all) for abort in at.worker.aborts] == [("operations", True)]

    run(check())


def test_the_same_affinity_key_of_two_tenants_is_two_keys() -> None:
    """P5, S13: what one tenant calls its chats says nothing about where another's run."""

    async def check() -> None:
        async with edge(says("hi"), workers=8, auth=keys()) as at:
            homes: dict[str, set[str]] = {}
            for key in (ACME, ACME_TOO, GLOBEX):
                for number in range(12):
                    headers = {"x-session-id": f"chat-{number}"}
                    call = await Keyed(at.ingress, key).chat(headers=headers).whole()
                    homes.setdefault(key, set()).add(f"{number} on {call.headers['x-remora-worker']}")
            assert homes[ACME] == homes[ACME_TOO]
            assert homes[ACME] != homes[GLOBEX]

    run(check())


def test_the_call_type_knows_what_was_read() -> None:
    """The test of an unread body can fail."""

    async def check() -> None:
        async with edge(says("x")) as at:
            call: Call = at.client.chat()
            await call.whole()
            assert not call.unread

    run(check())
