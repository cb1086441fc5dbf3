"""Responses that outlive their request: started, polled, followed and cancelled, here and from other replicas."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.ingress.responses.ids import Kind, ResponseId, token_of
from actors.ingress.responses.shelf import Shelf
from actors.ingress.responses.told import Told
from tests.ingress.asgi import Call, eventually, run
from tests.ingress.responses.calls import Asker, kinds, said, text_of
from tests.ingress.responses.test_responses import HI, another_replica, asking

LONG = 4000


async def done(api: Asker, response_id: str) -> Any:
    """Poll until it is over, as clients do."""
    while True:
        found = (await api.get(response_id)).json()
        if found["status"] not in ("queued", "in_progress"):
            return found
        await asyncio.sleep(0.005)


def numbers(call: Call) -> list[int]:
    return [event["sequence_number"] for event in call.events]


def test_it_is_answered_at_once_and_polled(tmp_path: Path) -> None:
    async def check() -> None:
        async with asking(tmp_path, step_s=0.002) as (at, api):
            queued = await api.ask("hi", background=True, max_output_tokens=100)
            assert (queued["status"], queued["background"], queued["output"]) == ("queued", True, [])
            ended = await done(api, queued["id"])
            assert (ended["status"], text_of(ended)) == ("incomplete", said(HI, 100))
            assert ended["usage"]["output_tokens"] == 100
            assert (await another_replica(at).get(queued["id"])).json() == ended
            more = await api.ask("more", previous_response_id=queued["id"])
            assert more["usage"]["input_tokens"] > 100
            assert at.ingress.metrics.open_requests == 0

    run(check())


def test_its_client_may_leave(tmp_path: Path) -> None:
    """A1: what was asked for in the background is not aborted with the connection, streamed or not."""

    async def check() -> None:
        async with asking(tmp_path, step_s=0.002) as (_, api):
            call = api.start("hi", background=True, stream=True, max_output_tokens=200)
            await call.until("output_text.delta")
            assert kinds(call)[:3] == ["response.created", "response.queued", "response.in_progress"]
            call.disconnect()
            await call.whole()
            response_id = call.events[0]["response"]["id"]
            assert (await api.get(response_id)).json()["status"] == "in_progress"
            ended = await done(api, response_id)
            assert text_of(ended) == said(HI, 200)
            again = await api.get(response_id, "?stream=true")
            assert call.body == again.body[: len(call.body)]

    run(check())


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_stream_is_taken_up_where_it_was_left(tmp_path: Path, elsewhere: bool) -> None:
    """`starting_after`: nothing is missing and nothing comes twice, also in a replica that hears of it only when it is
    over."""

    async def check() -> None:
        async with asking(tmp_path, step_s=0.002) as (at, api):
            call = api.start("hi", background=True, stream=True, max_output_tokens=150)
            await call.until("output_text.delta")
            call.disconnect()
            await call.whole()
            response_id, seen = call.events[0]["response"]["id"], numbers(call)[-1]
            replica = another_replica(at) if elsewhere else api
            rest = await replica.get(response_id, f"?stream=true&starting_after={seen}")
            assert rest.headers["content-type"].startswith("text/event-stream")
            assert numbers(rest)[0] == seen + 1
            assert kinds(rest)[-1] == "response.incomplete"
            deltas = [event["delta"] for event in call.events + rest.events if event["type"].endswith("text.delta")]
            assert "".join(deltas) == said(HI, 150)
            whole = await api.get(response_id, "?stream=true")
            assert whole.body == call.body + rest.body

    run(check())


def test_several_follow_one(tmp_path: Path) -> None:
    """A8: one that does not read holds up nobody."""

    async def check() -> None:
        async with asking(tmp_path, step_s=0.002) as (_, api):
            queued = await api.ask("hi", background=True, max_output_tokens=100)
            path = f"/v1/responses/{queued['id']}?stream=true"
            stuck = api.client.start("GET", path)
            stuck.stuck = True
            others = [api.client.start("GET", path) for _ in range(3)]
            bodies = {(await other.whole()).body for other in others}
            assert len(bodies) == 1
            assert (await done(api, queued["id"]))["status"] == "incomplete"
            stuck.disconnect()
            await stuck.whole()

    run(check())


@pytest.mark.parametrize("elsewhere", [False, True])
def test_it_is_cancelled_from_anywhere(tmp_path: Path, elsewhere: bool) -> None:
    """A4, A6, S2: the pages come back, what there was can be looked at, and it is no history."""

    async def check() -> None:
        async with asking(tmp_path, workers=2, step_s=0.002) as (at, api):
            queued = await api.ask("hi", background=True, max_output_tokens=LONG)
            await eventually(lambda: any(at.pages(worker)["request_owned"] for worker in ("w1", "w2")))
            replica = another_replica(at) if elsewhere else api
            cancelled = await replica.cancel(queued["id"])
            assert (cancelled.status, cancelled.json()["status"]) == (200, "cancelled")
            assert all(at.pages(worker)["request_owned"] == 0 for worker in ("w1", "w2"))
            again = await api.cancel(queued["id"])
            assert again.json() == cancelled.json() == (await api.get(queued["id"])).json()
            status, error = await api.refused("more", previous_response_id=queued["id"])
            assert (status, error["code"]) == (404, "previous_response_not_found")
            told = await api.get(queued["id"], "?stream=true")
            assert (kinds(told)[-1], told.events[-1]["response"]["status"]) == ("response.incomplete", "cancelled")

    run(check())


def test_one_that_is_over_is_not_changed_by_a_cancel(tmp_path: Path) -> None:
    """A4."""

    async def check() -> None:
        async with asking(tmp_path) as (_, api):
            made = await api.ask("hi")
            cancelled = await api.cancel(made["id"])
            assert (cancelled.status, cancelled.json()) == (200, made)

    run(check())


def test_one_that_runs_is_deleted(tmp_path: Path) -> None:
    async def check() -> None:
        async with asking(tmp_path, step_s=0.002) as (at, api):
            queued = await api.ask("hi", background=True, max_output_tokens=LONG)
            await eventually(lambda: at.pages()["request_owned"])
            assert (await api.delete(f"/v1/responses/{queued['id']}")).status == 200
            await eventually(lambda: at.pages()["request_owned"] == 0)
            await eventually(lambda: at.ingress.metrics.open_requests == 0)
            await eventually(lambda: not at.ingress.router.running)
            for replica in (another_replica(at), api):
                assert (await replica.get(queued["id"])).status == 404

    run(check())


def test_what_can_be_refused_at_once_is_refused_with_a_status(tmp_path: Path) -> None:
    """E3, S7."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            ways: list[tuple[dict[str, Any], int, str]] = [
                ({"text": 5, "background": "yes"}, 400, "background"),
                ({"text": "x" * 9000, "background": True}, 400, "input"),
                ({"previous_response_id": "resp_x", "background": True}, 404, "previous_response_id"),
                ({"conversation": "conv_" + "0" * 24, "background": True}, 404, "conversation"),
            ]
            for way, wanted, param in ways:
                fields = dict(way)
                status, error = await api.refused(fields.pop("text", "hi"), **fields)
                assert (status, error["param"]) == (wanted, param)
            assert at.ingress.metrics.open_requests == 0

    run(check())


def test_what_fails_later_is_found_by_polling(tmp_path: Path) -> None:
    """E4: with its reason; a stream of it has the error as an event."""

    async def check() -> None:
        async with asking(tmp_path, step_s=0.005) as (at, api):
            late = await api.ask("hi", background=True, max_output_tokens=LONG, running_timeout_s=0.1)
            failed = await done(api, late["id"])
            assert (failed["status"], failed["error"]["code"]) == ("failed", "running_timeout")
            never = await api.ask("hi", background=True, max_output_tokens=8190)
            failed = await done(api, never["id"])
            assert (failed["status"], failed["error"]["code"], failed["output"]) == (
                "failed",
                "context_length_exceeded",
                [],
            )
            told = await another_replica(at).get(never["id"], "?stream=true")
            assert kinds(told)[-2:] == ["error", "response.failed"]
            assert told.events[-2]["error"]["param"] == "max_output_tokens"

    run(check())


def test_who_follows_a_request_that_fails_is_told_why(tmp_path: Path) -> None:
    """E4: also where its own client, which did not ask for a stream, has a status."""

    async def check() -> None:
        async with asking(tmp_path, step_s=0.005) as (at, _):
            key = {"idempotency-key": "mine"}
            body = {"input": "hi", "max_output_tokens": LONG, "running_timeout_s": 0.2}
            own = token_of("mine")
            asked = at.client.start("POST", "/v1/responses", body, key)
            await eventually(lambda: at.ingress.router.running and at.shell().stats()["live"])
            path = f"/v1/responses/{ResponseId(Kind.CHAIN, own, own)}?stream=true"
            told = await at.client.get(path)
            assert (await asked.whole()).json()["error"]["reason"] == "running_timeout"
            assert told.events[-2]["error"]["reason"] == "running_timeout"
            assert told.events[-1]["response"]["error"]["code"] == "running_timeout"

    run(check())


def test_a_worker_that_dies_does_not_end_it(tmp_path: Path) -> None:
    """T4: it goes on elsewhere, with the same text."""

    async def check() -> None:
        async with asking(tmp_path, workers=2, step_s=0.002) as (at, api):
            call = api.start("hi", background=True, stream=True, max_output_tokens=200)
            await call.until("output_text.delta")
            (running,) = at.ingress.router.running
            at.pool.workers[str(running.worker_id)].kill()
            await call.whole()
            assert text_of(call.events[-1]["response"]) == said(HI, 200)

    run(check())


def test_a_replica_that_dies_is_noticed(tmp_path: Path) -> None:
    """T6: the others say that it runs as long as its mark is renewed, and then that it failed."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            at.pool.lease_s = 0.3
            made = await api.ask("hi")
            dead = Shelf(at.pool, at.ingress.config)
            id_ = "resp_r" + "0" * 48
            echo = {**{name: made[name] for name in ("metadata", "store", "tools")}, "background": True}
            told = Told(id=id_, own="0" * 24, model="toy", created_at=1, echo=echo, items=[])
            mark = await dead.begin("default", told, b"")
            assert mark is not None
            mark.stop()
            assert (await api.get(id_)).json()["status"] == "in_progress"
            lost = await done(api, id_)
            assert (lost["status"], lost["error"]["code"]) == ("failed", "worker_lost")
            followed = await api.get(id_, "?stream=true")
            assert kinds(followed)[-1] == "response.failed"

    run(check())


def test_a_shutdown_is_told_to_the_store(tmp_path: Path) -> None:
    """E2: reason `shutdown`; nobody waits for what nobody runs."""

    async def check() -> None:
        async with asking(tmp_path, step_s=0.002) as (at, api):
            async with at.app.router.lifespan_context(at.app):
                queued = await api.ask("hi", background=True, max_output_tokens=LONG)
                await eventually(lambda: at.pages()["request_owned"])
            found = (await another_replica(at).get(queued["id"])).json()
            assert (found["status"], found["error"]["code"]) == ("failed", "shutdown")

    run(check())


def test_one_sent_again_is_the_same(tmp_path: Path) -> None:
    """T2: while it runs, and when it is over: computed once."""

    async def check() -> None:
        async with asking(tmp_path, step_s=0.001) as (at, api):
            key = {"idempotency-key": "k"}
            asked = {"background": True, "max_output_tokens": 100}
            first = await api.ask("hi", key, **asked)
            second = await api.ask("hi", key, **asked)
            assert first["id"] == second["id"]
            ended = await done(api, first["id"])
            assert text_of(ended) == said(HI, 100)
            third = await api.ask("hi", key, **asked)
            assert third["id"] == first["id"]
            await eventually(lambda: not at.ingress.router.running)
            assert await done(api, first["id"]) == ended
            other = await api.start("other", key, **asked).whole()
            assert (other.status, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
            assert at.shell().stats()["output_tokens"] == 100
            labels = at.ingress.metrics.ended.labels("abort", "invalid", "routing")
            assert labels._value.get() == 1, "E6"

    run(check())


@pytest.mark.parametrize("query", ["stream=maybe", "stream=true&starting_after=x", "starting_after=-1", "include=all"])
def test_wrong_queries_name_the_field(tmp_path: Path, query: str) -> None:
    """I1."""

    async def check() -> None:
        async with asking(tmp_path) as (_, api):
            made = await api.ask("hi")
            call = await api.get(made["id"], f"?{query}")
            assert call.status == 400
            assert call.json()["error"]["param"].partition("[")[0] in query

    run(check())
