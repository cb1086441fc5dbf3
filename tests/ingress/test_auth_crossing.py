"""Nothing crosses from one tenant to another: every route, with real workers and a real store behind it.

The route table is walked, so that a route added later has to be told here what it is; whoever forgets sees this fail.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from actors.ingress.app import build_app
from actors.ingress.auth import OPEN_PATHS
from configs import TenantLimits
from tests.ingress.asgi import Call, Client, eventually, run
from tests.ingress.harness import edge
from tests.ingress.keyed import ACME, GLOBEX, Keyed, keys
from tests.ingress.local import Cluster, cluster

SESSION = "plans"
"""Acme's: two committed turns, and a third that runs."""
UNKNOWN = "never-made"
RUNNING = "turn-3"


@dataclass(frozen=True)
class Way:
    """How a stranger tries to use a route on somebody else's things. `{name}` in the path and in the body is a session;
    `says` is what every caller is told. `generates`: counts against the limits on requests."""

    path: str
    body: Any = None
    status: int = 404
    generates: bool = False
    says: dict[str, Any] = field(default_factory=dict)


CHAT = [{"role": "user", "content": "and then?"}]
NAMED = {"id": "{name}", "parent": "turn-1"}
SCOPED = {
    "POST /v1/chat/completions": [
        Way("/v1/chat/completions", {"messages": CHAT, "session": {"id": "{name}"}}, generates=True),
        Way("/v1/chat/completions", {"messages": CHAT, "session": NAMED}, generates=True),
        Way("/v1/chat/completions", {"messages": CHAT, "stream": True, "session": {"id": "{name}"}}, generates=True),
        Way(
            "/v1/chat/completions",
            {"messages": CHAT, "session": {"id": "{name}", "on_busy": "supersede", "parent": RUNNING, "replace": True}},
            generates=True,
        ),
    ],
    "POST /v1/completions": [
        Way("/v1/completions", {"prompt": "and then?", "session": {"id": "{name}"}}, generates=True),
        Way("/v1/completions", {"prompt": [65], "stream": True, "session": NAMED}, generates=True),
    ],
    "POST /v1/messages": [
        Way("/v1/messages", {"messages": CHAT, "max_tokens": 4, "session": {"id": "{name}"}}, generates=True),
        Way("/v1/messages", {"messages": CHAT, "max_tokens": 4, "stream": True, "session": NAMED}, generates=True),
    ],
    # With ids of the other tenant's own responses: tests/ingress/responses/test_crossing.py.
    "POST /v1/responses": [
        Way("/v1/responses", {"input": "and then?", "previous_response_id": "{name}"}, generates=True),
        Way("/v1/responses", {"input": "x", "stream": True, "previous_response_id": "{name}"}, generates=True),
        Way("/v1/responses", {"input": "x", "background": True, "previous_response_id": "{name}"}, generates=True),
    ],
    "GET /v1/responses/{response_id}": [Way("/v1/responses/{name}"), Way("/v1/responses/{name}?stream=true")],
    "DELETE /v1/responses/{response_id}": [Way("/v1/responses/{name}")],
    "POST /v1/responses/{response_id}/cancel": [Way("/v1/responses/{name}/cancel")],
    "GET /v1/responses/{response_id}/input_items": [Way("/v1/responses/{name}/input_items")],
    "GET /v1/conversations/{conversation_id}": [Way("/v1/conversations/{name}")],
    "POST /v1/conversations/{conversation_id}": [Way("/v1/conversations/{name}", {"metadata": {}})],
    "DELETE /v1/conversations/{conversation_id}": [Way("/v1/conversations/{name}")],
    "GET /v1/conversations/{conversation_id}/items": [Way("/v1/conversations/{name}/items")],
    "POST /v1/conversations/{conversation_id}/items": [
        Way("/v1/conversations/{name}/items", {"items": [{"role": "user", "content": "x"}]}),
    ],
    "GET /v1/conversations/{conversation_id}/items/{item_id}": [Way("/v1/conversations/{name}/items/msg_1")],
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}": [Way("/v1/conversations/{name}/items/msg_1")],
    "GET /v1/sessions/{session_id:path}": [Way("/v1/sessions/{name}")],
    "DELETE /v1/sessions/{session_id:path}": [
        Way("/v1/sessions/{name}"),
        Way("/v1/sessions/{name}?mode=abort"),
    ],
    "POST /v1/sessions/{session_id:path}/fork": [
        Way("/v1/sessions/{name}/fork", {"id": "copy"}),
        Way("/v1/sessions/{name}/fork", {"id": "copy", "turn": "turn-1"}),
    ],
    "POST /v1/sessions/{session_id:path}/rollback": [Way("/v1/sessions/{name}/rollback", {"turn": "turn-1"})],
    "POST /v1/aborts": [
        Way("/v1/aborts", {"session": "{name}"}, 200, says={"hit": [], "already_ended": []}),
        Way("/v1/aborts", {"prefix": "turn"}, 200, says={"hit": [], "already_ended": []}),
        Way("/v1/aborts", {"rids": [RUNNING, "turn-1"]}, 200, says={"hit": [], "unknown": [RUNNING, "turn-1"]}),
    ],
    "GET /v1/sessions": [
        Way("/v1/sessions", status=200, says={"data": []}),
        Way("/v1/sessions?after=a", status=200, says={"data": []}),
    ],
    "POST /generate": [
        Way("/generate", {"text": "and then?", "session_params": {"id": "{name}"}}, generates=True),
        Way("/generate", {"text": "and then?", "session_params": {"id": "{name}", "rid": "turn-1"}}, generates=True),
        Way(
            "/generate",
            {"text": "x", "session_params": {"id": "{name}", "rid": RUNNING, "replace": True}},
            generates=True,
        ),
        Way("/generate", {"input_ids": [65], "stream": True, "session_id": "{name}"}, generates=True),
    ],
    "POST /close_session": [Way("/close_session", {"session_id": "{name}"})],
    "POST /abort_request": [
        Way("/abort_request", {"rid": RUNNING}, 200, says={"hit": [], "already_ended": [], "unknown": [RUNNING]}),
    ],
    "GET /health_generate": [Way("/health_generate", status=200, generates=True)],
}
OWN = {
    "POST /v1/sessions": "names are the caller's own: see test_two_tenants_may_use_the_same_names",
    "POST /v1/conversations": "names are made: see tests/ingress/responses/test_crossing.py",
    "POST /open_session": "the same: see test_native_sessions_are_the_tenants_own",
}
OPERATORS = {
    "GET /v1/stats": "see test_who_sees_the_stats_of_all",
    "POST /v1/rollouts": "see test_a_rollout_is_for_operators",
    "GET /metrics": "see test_who_sees_the_stats_of_all",
    "POST /flush_cache": "see test_what_concerns_all_takes_an_admin_key",
    "GET /flush_cache": "see test_what_concerns_all_takes_an_admin_key",
    "POST /pause_generation": "see test_what_concerns_all_takes_an_admin_key",
    "POST /continue_generation": "see test_what_concerns_all_takes_an_admin_key",
    "GET /server_info": "see test_workers_are_shown_to_those_who_may_see_them",
    "GET /get_server_info": "see test_workers_are_shown_to_those_who_may_see_them",
}
SAME_FOR_ALL = {
    "GET /openapi.json",
    "GET /model_info",
    "GET /get_model_info",
    "GET /v1/models",
    "GET /v1/models/{model:path}",
    "GET /health",
    "GET /",
    "POST /v1/messages/count_tokens",
    "POST /tokenize",
    "POST /detokenize",
}


def routes() -> dict[str, Route]:
    async def find() -> dict[str, Route]:
        async with edge() as at:
            table = [route for route in build_app(at.ingress).routes if isinstance(route, Route)]
            assert len(table) == len(build_app(at.ingress).routes), "something other than a route"
            return {f"{method} {r.path}": r for r in table for method in (r.methods or {"ANY"}) if method != "HEAD"}

    return run(find())


WAYS = [(name, way) for name, ways in SCOPED.items() for way in ways]


def test_every_route_is_known_here() -> None:
    """S13: a new route has to say how it is scoped, above."""
    assert set(routes()) == {*SCOPED, *OWN, *OPERATORS, *SAME_FOR_ALL}


@pytest.mark.parametrize("name", sorted({*SCOPED, *OWN, *OPERATORS, *SAME_FOR_ALL}))
def test_every_route_asks_for_a_key(name: str) -> None:
    """S13: but those that a balancer asks."""
    method, path = name.split(" ")

    async def check() -> None:
        async with edge(auth=keys()) as at:
            filled = path.replace("{session_id:path}", "s").replace("{model:path}", "toy")
            call = await at.client.start(method, filled, {}).whole()
            assert call.status == (200 if path in OPEN_PATHS else 401)

    run(check())


@asynccontextmanager
async def busy(folder: Path) -> AsyncIterator[tuple[Cluster, Client, Client, Call]]:
    """Acme's session with its turns, one of them running, and a stranger."""
    async with cluster(folder, workers=2, step_s=0.002, auth=keys()) as at:
        acme, globex = Keyed(at.ingress, ACME), Keyed(at.ingress, GLOBEX)
        for number in (1, 2):
            session = {"id": SESSION, "create": number == 1}
            turn = await acme.chat("the secret plan", rid=f"turn-{number}", session=session, max_tokens=4).whole()
            assert turn.status == 200
        running = acme.chat("go on", rid=RUNNING, session={"id": SESSION}, max_tokens=4000, stream=True)
        await running.until("delta")
        yield at, acme, globex, running
        assert not running.task.done(), f"the stranger ended it: {running.body!r}"
        running.disconnect()
        await running.whole()


def named(value: Any, name: str) -> Any:
    return json.loads(json.dumps(value).replace("{name}", name)) if value is not None else None


_OF_ONE_REQUEST = ("x-request-id", "request-id", "content-length")


def comparable(call: Call, name: str) -> tuple[int, str, dict[str, str]]:
    """An answer without what is different in every answer."""
    body = call.body.decode().replace(name, "…")
    headers = {key: value for key, value in call.headers.items() if key not in _OF_ONE_REQUEST}
    return call.status, body.replace(call.headers["x-request-id"], "…"), headers


@pytest.mark.parametrize(("name", "way"), WAYS, ids=[f"{name} {way.body}"[:90] for name, way in WAYS])
def test_another_tenants_session_is_as_unknown_as_one_never_made(tmp_path: Path, name: str, way: Way) -> None:
    """S13, A1, A4: the same answer to the letter, and nothing of the other tenant's is touched."""
    method = name.split(" ")[0]

    async def check() -> None:
        async with busy(tmp_path) as (_, acme, globex, _):
            before = (await acme.get(f"/v1/sessions/{SESSION}")).json()
            answers = []
            for target in (SESSION, UNKNOWN):
                call = await globex.start(method, way.path.replace("{name}", target), named(way.body, target)).whole()
                answers.append(comparable(call, target))
                assert call.status == way.status, call.body
                if way.status == 404:
                    assert call.json()["error"]["reason"] == "session_unknown"
                for key, value in way.says.items():
                    assert call.json()[key] == value
                assert "turn-1" not in call.body.decode() or "rids" in (way.body or {})
                assert "secret plan" not in call.body.decode()
            assert answers[0] == answers[1]
            after = (await acme.get(f"/v1/sessions/{SESSION}")).json()
            still = ("generation", "epoch", "turns", "head", "running_rid", "state")
            assert {key: after[key] for key in still} == {key: before[key] for key in still}
            assert after["running_rid"] == RUNNING

    run(check())


def test_two_tenants_may_use_the_same_names(tmp_path: Path) -> None:
    """S13: ids of sessions, rids and idempotency keys mean something within a tenant only."""

    async def check() -> None:
        async with busy(tmp_path) as (at, acme, globex, _):
            made = await globex.post("/v1/sessions", {"id": SESSION})
            assert (made.status, made.json()["turns"]) == (200, 0)
            key = {"idempotency-key": "turn-1"}
            turn = await globex.chat("the secret plan", key, session={"id": SESSION}, max_tokens=4).whole()
            assert (turn.status, turn.json().get("replayed")) == (200, None)
            assert turn.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            other = await globex.chat("mine", rid=RUNNING, session={"id": SESSION}, max_tokens=4).whole()
            assert other.status == 200
            assert (await globex.get(f"/v1/sessions/{SESSION}")).json()["turns"] == 2
            assert [row["id"] for row in (await globex.get("/v1/sessions")).json()["data"]] == [SESSION]
            closed = await globex.start("DELETE", f"/v1/sessions/{SESSION}").whole()
            assert (closed.status, closed.json()["turns"]) == (200, 2)
            mine = (await acme.get(f"/v1/sessions/{SESSION}")).json()
            assert (mine["turns"], mine["running_rid"]) == (2, RUNNING)
            assert len(at.ingress.router.running) == 1

    run(check())


def test_an_abort_of_a_parked_request_stays_in_its_tenant() -> None:
    """A1, S13: also where no worker has it yet."""

    async def check() -> None:
        async with edge(auth=keys()) as at:
            at.pool.ready = False
            acme, globex = Keyed(at.ingress, ACME), Keyed(at.ingress, GLOBEX)
            call = acme.chat(rid="job")
            await eventually(lambda: len(at.ingress.router.running) == 1)
            for body in ({"rid": "job"}, {"prefix": "j"}):
                assert (await globex.post("/v1/aborts", body)).json()["hit"] == []
            assert not call.task.done()
            assert [hit["rid"] for hit in (await acme.post("/v1/aborts", {"prefix": "j"})).json()["hit"]] == ["job"]
            assert (await call.whole()).status == 200

    run(check())


def test_identical_prompts_of_two_tenants_share_no_cache(tmp_path: Path) -> None:
    """K3, S13: a cached_tokens that told of another tenant's prompts would be a leak."""

    async def check() -> None:
        async with cluster(tmp_path, auth=keys()) as at:
            cached = []
            for key in (ACME, ACME, GLOBEX):
                call = await Keyed(at.ingress, key).chat("x" * 200, max_tokens=2).whole()
                cached.append(call.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
            assert cached[0] == cached[2] == 0
            assert cached[1] > 100

    run(check())


@pytest.mark.parametrize("name", sorted(routes()))
def test_requests_that_generate_are_limited_and_no_others(name: str) -> None:
    """S10: what a tenant over its limit may still do is everything that costs no tokens, aborts above all."""
    method, path = name.split(" ")
    ways = SCOPED.get(name, [Way(path.replace("{model:path}", "toy"))])

    async def check() -> None:
        async with edge(auth=keys(), tenants={"acme": TenantLimits(requests_per_minute=1)}) as at:
            acme = Keyed(at.ingress, ACME)
            at.ingress.limiter.admit("acme")
            for way in ways:
                call = await acme.start(method, named(way.path, "s"), named(way.body, "s")).whole()
                assert (call.status == 429) == way.generates

    run(check())
