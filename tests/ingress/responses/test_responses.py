"""POST /v1/responses and what can be done with one, over real workers: a response is a turn of a tree session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.ingress.app import build_app
from tests.ingress.asgi import Client, eventually, run
from tests.ingress.local import Cluster, cluster
from tests.ingress.responses.calls import Asker, kinds, said, text_of, without_times

HI = "user: hi\nassistant: "


@asynccontextmanager
async def asking(folder: Path, **options: Any) -> AsyncIterator[tuple[Cluster, Asker]]:
    async with cluster(folder, **options) as at:
        yield at, Asker(at.client)


def another_replica(at: Cluster) -> Asker:
    """Another application over the same cluster: it knows nothing but what the store knows."""
    return Asker(Client(build_app(at.ingress)))


def test_a_response_is_answered_and_can_be_asked_for_anywhere(tmp_path: Path) -> None:
    """E5, P5."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            made = await api.ask("hi", metadata={"a": "b"}, instructions="be brief")
            assert text_of(made) == said("system: be brief\nuser: hi\nassistant: ")
            assert (made["object"], made["status"], made["metadata"]) == ("response", "incomplete", {"a": "b"})
            assert made["instructions"] == "be brief"
            assert made["usage"]["input_tokens"] == len("system: be brief\nuser: hi\nassistant: ")
            assert made["usage"]["output_tokens"] == 8
            for replica in (api, another_replica(at)):
                found = await replica.get(made["id"])
                assert (found.status, found.json()) == (200, made)

    run(check())


@pytest.mark.parametrize("way", [{}, {"stream": True}, {"store": False}, {"store": False, "stream": True}])
def test_all_ways_to_ask_say_the_same(tmp_path: Path, way: dict[str, Any]) -> None:
    """I2: streamed and not, stored and not."""

    async def check() -> None:
        async with asking(tmp_path) as (_, api):
            made = await api.ask("hi", **way)
            assert text_of(made) == said(HI)
            plain = await api.ask("hi")
            assert without_times({**made, "store": True}) == without_times(plain)

    run(check())


def test_a_stream_has_the_events_of_the_api_in_order(tmp_path: Path) -> None:
    async def check() -> None:
        async with asking(tmp_path) as (_, api):
            call = await api.start("hi", stream=True).whole()
            assert call.headers["content-type"].startswith("text/event-stream")
            told = kinds(call)
            deltas = told.count("response.output_text.delta")
            assert told == [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.content_part.added",
                *["response.output_text.delta"] * deltas,
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.incomplete",
            ]
            assert deltas >= 1
            assert [event["sequence_number"] for event in call.events] == list(range(len(told)))

    run(check())


def test_a_response_goes_on_from_another_and_branches(tmp_path: Path) -> None:
    """S3, P5, K1: history is tokens; two that go on from one do not see each other."""

    async def check() -> None:
        async with asking(tmp_path, workers=2) as (at, api):
            first = await api.ask("one")
            before = f"user: one\nassistant: {text_of(first)}\n"
            branches = [await api.ask(text, previous_response_id=first["id"]) for text in ("two", "three")]
            for text, branch in zip(("two", "three"), branches, strict=True):
                assert text_of(branch) == said(f"{before}user: {text}\nassistant: ")
                assert branch["previous_response_id"] == first["id"]
            assert branches[0]["usage"]["input_tokens_details"]["cached_tokens"] in (len(before) - 1, len(before) - 2)
            deeper = await another_replica(at).ask("four", previous_response_id=branches[0]["id"])
            assert text_of(deeper) == said(
                f"{before}user: two\nassistant: {text_of(branches[0])}\nuser: four\nassistant: "
            )
            sessions = (await at.client.get("/v1/sessions")).json()["data"]
            assert [session["turns"] for session in sessions] == [4]

    run(check())


def test_responses_that_go_on_from_one_at_once_run_one_after_the_other(tmp_path: Path) -> None:
    """S5, S6: they queue; none is refused, and none sees another."""

    async def check() -> None:
        async with asking(tmp_path, step_s=0.001) as (_, api):
            first = await api.ask("one")
            calls = [api.start(f"q{n}", previous_response_id=first["id"]) for n in range(5)]
            made = [(await call.whole()).json() for call in calls]
            before = f"user: one\nassistant: {text_of(first)}\n"
            assert [text_of(one) for one in made] == [said(f"{before}user: q{n}\nassistant: ") for n in range(5)]

    run(check())


def test_instructions_stay_where_they_were_said(tmp_path: Path) -> None:
    """S1: what the model has seen is not unsaid. The same ones again add nothing; others are placed behind, where the
    template has a place for them, and are refused by name where it has none."""

    async def check() -> None:
        async with asking(tmp_path) as (_, api):
            first = await api.ask("one", instructions="be brief")
            before = f"system: be brief\nuser: one\nassistant: {text_of(first)}\n"
            ways: list[dict[str, Any]] = [{"instructions": "be brief"}, {}]
            for given in ways:
                again = await api.ask("two", previous_response_id=first["id"], **given)
                assert text_of(again) == said(f"{before}user: two\nassistant: ")
                assert again["instructions"] == given.get("instructions")
            third = await api.ask("three", previous_response_id=again["id"], instructions="be brief")
            assert third["usage"]["input_tokens"] == again["usage"]["total_tokens"] + len("\nuser: three\nassistant: ")
            status, error = await api.refused("two", previous_response_id=first["id"], instructions="be long")
            assert (status, error["param"]) == (400, "instructions")

    run(check())


def test_what_is_not_stored_leaves_nothing(tmp_path: Path) -> None:
    """P5: no session, no record."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            made = await api.ask("hi", store=False)
            assert (await api.get(made["id"])).status == 404
            assert (await at.client.get("/v1/sessions")).json()["data"] == []
            status, error = await api.refused("more", previous_response_id=made["id"])
            assert (status, error["code"]) == (404, "previous_response_not_found")
            assert "store" in error["message"]

    run(check())


@pytest.mark.parametrize(
    "unknown", ["x", "resp_", "resp_r" + "0" * 48, "resp_c" + "0" * 48, "resp_r" + "0" * 47 + "G", "turn-1"]
)
def test_an_unknown_predecessor_is_not_found(tmp_path: Path, unknown: str) -> None:
    """E3, T6: never a response without its history."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            status, error = await api.refused(previous_response_id=unknown)
            assert (status, error["code"]) == (404, "previous_response_not_found")
            assert (error["param"], error["reason"]) == ("previous_response_id", "session_unknown")
            for call in (await api.get(unknown), await api.cancel(unknown), await api.get(unknown, "/input_items")):
                assert (call.status, call.json()["error"]["reason"]) == (404, "session_unknown")
            assert (await api.delete(f"/v1/responses/{unknown}")).status == 404
            assert (await at.client.get("/v1/sessions")).json()["data"] == []

    run(check())


def test_a_response_whose_session_has_ended_is_told_but_not_gone_on_from(tmp_path: Path) -> None:
    """T6, S14: an ended session never turns into an empty one."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            made = await api.ask("hi")
            (session,) = (await at.client.get("/v1/sessions")).json()["data"]
            assert (await api.delete(f"/v1/sessions/{session['id']}")).status == 200
            assert (await api.get(made["id"])).json() == made
            status, error = await api.refused("more", previous_response_id=made["id"])
            assert (status, error["code"], error["param"]) == (
                404,
                "previous_response_not_found",
                "previous_response_id",
            )

    run(check())


def test_a_deleted_response_is_gone_and_those_behind_it_stay(tmp_path: Path) -> None:
    """S1: its turn is part of theirs."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            first = await api.ask("one")
            second = await api.ask("two", previous_response_id=first["id"])
            gone = await api.delete(f"/v1/responses/{first['id']}")
            assert gone.json() == {"id": first["id"], "object": "response", "deleted": True}
            for replica in (api, another_replica(at)):
                assert (await replica.get(first["id"])).status == 404
                status, error = await replica.refused("more", previous_response_id=first["id"])
                assert (status, error["code"]) == (404, "previous_response_not_found")
            assert (await api.delete(f"/v1/responses/{first['id']}")).status == 404
            third = await api.ask("three", previous_response_id=second["id"])
            assert third["usage"]["input_tokens"] > second["usage"]["total_tokens"]
            alone = await api.ask("alone")
            assert len((await at.client.get("/v1/sessions")).json()["data"]) == 2
            await api.delete(f"/v1/responses/{alone['id']}")
            assert len((await at.client.get("/v1/sessions")).json()["data"]) == 1

    run(check())


def test_input_items_are_listed_page_by_page(tmp_path: Path) -> None:
    async def check() -> None:
        async with asking(tmp_path) as (_, api):
            items = [{"role": "user", "content": f"m{n}"} for n in range(5)]
            made = await api.ask(items)

            async def page(query: str) -> Any:
                call = await api.get(made["id"], f"/input_items{query}")
                return call.json() if call.status == 200 else call.json()["error"]["param"]

            def texts(found: Any) -> list[str]:
                return [item["content"][0]["text"] for item in found["data"]]

            newest = await page("")
            assert texts(newest) == ["m4", "m3", "m2", "m1", "m0"]
            assert not newest["has_more"]
            first = await page("?order=asc&limit=2")
            assert (texts(first), first["has_more"]) == (["m0", "m1"], True)
            second = await page(f"?order=asc&limit=3&after={first['last_id']}")
            assert (texts(second), second["has_more"]) == (["m2", "m3", "m4"], False)
            assert [await page(f"?{wrong}") for wrong in ("order=up", "limit=0", "limit=x", "after=nope")] == [
                "order",
                "limit",
                "limit",
                "after",
            ]

    run(check())


@pytest.mark.parametrize("background", [False, True])
def test_a_key_whose_response_was_deleted_says_so(tmp_path: Path, background: bool) -> None:
    """T2: it is neither answered with nothing nor run anew unseen."""

    async def check() -> None:
        async with asking(tmp_path) as (_, api):
            key = {"idempotency-key": "k"}
            made = await api.ask("one", key)
            assert (await api.delete(f"/v1/responses/{made['id']}")).status == 200
            again = await api.start("one", key, background=background).whole()
            assert (again.status, again.json()["error"]["code"]) == (400, "idempotency_key_expired")

    run(check())


@pytest.mark.parametrize("streams", [(False, False), (True, False), (False, True)])
def test_a_request_sent_again_is_the_same_response(
    tmp_path: Path, streams: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2: with an Idempotency-Key: computed once, whether it begins a chain or goes on with one."""

    async def check() -> None:
        async with asking(tmp_path, workers=2) as (at, api):
            root = await api.ask("one")
            for fields in ({}, {"previous_response_id": root["id"]}):
                key = {"idempotency-key": f"k{len(fields)}"}
                first = await api.ask("two", key, stream=streams[0], **fields)
                monkeypatch.setattr("actors.ingress.responses.call.time", SimpleNamespace(time=lambda: 5.0))
                second = await api.ask("two", key, stream=streams[1], **fields)
                assert second.pop("replayed")
                assert first == second
                again = await api.start("two", key, stream=True, **fields).whole()
                assert {event["response"]["created_at"] for event in again.events if "response" in event} == {
                    first["created_at"]
                }
                assert (await api.get(first["id"])).json() == first
                other = await api.start("other", key, **fields).whole()
                assert (other.status, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
            made = sum(int(worker.shell.stats()["output_tokens"]) for worker in at.pool.workers.values())  # type: ignore[call-overload]
            assert made == 24

    run(check())


def test_an_error_before_the_first_token_has_a_status_and_leaves_nothing(tmp_path: Path) -> None:
    """E3, S7: also for a stream."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            for stream in (False, True):
                status, error = await api.refused("x" * 9000, stream=stream)
                assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
                status, error = await api.refused(stream=stream, max_output_tokens=8190)
                assert (status, error["param"]) == (400, "max_output_tokens")
            assert at.ingress.metrics.open_requests == 0
            await eventually(lambda: not at.pool.store.list_sessions("default"))

    run(check())


def test_an_error_after_the_first_token_is_one_event_and_the_failed_response(tmp_path: Path) -> None:
    """E3, S2: what failed can be looked at, but is no history."""

    async def check() -> None:
        async with asking(tmp_path, step_s=0.005) as (_, api):
            call = await api.start(max_output_tokens=4000, running_timeout_s=0.2, stream=True).whole()
            assert call.status == 200
            assert kinds(call)[-2:] == ["error", "response.failed"]
            failed = call.events[-1]["response"]
            assert (failed["status"], failed["error"]["code"]) == ("failed", "running_timeout")
            assert text_of(failed)
            assert (await api.get(failed["id"])).json() == failed
            assert (await api.get(failed["id"], "?stream=true")).body == call.body
            status, error = await api.refused("more", previous_response_id=failed["id"])
            assert (status, error["code"]) == (404, "previous_response_not_found")

    run(check())


def test_a_client_that_leaves_ends_its_response(tmp_path: Path) -> None:
    """A1, S2: the pages come back, and nothing of it is kept."""

    async def check() -> None:
        async with asking(tmp_path, step_s=0.002) as (at, api):
            call = api.start(max_output_tokens=4000, stream=True)
            await call.until("output_text.delta")
            response_id = call.events[0]["response"]["id"]
            running = await api.get(response_id)
            assert (running.json()["status"], text_of(running.json()) != "") == ("in_progress", True)
            call.disconnect()
            await call.whole()
            await eventually(lambda: at.pages()["request_owned"] == 0)
            assert (await api.get(response_id)).status == 404
            await eventually(lambda: at.ingress.metrics.open_requests == 0)
            await eventually(lambda: not at.pool.store.list_sessions("default"))  # S10: nobody can name it.

    run(check())


def test_sessions_of_this_api_are_not_opened_by_others(tmp_path: Path) -> None:
    """P5: they can be looked at and closed, like all."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            await api.ask("hi")
            (session,) = (await at.client.get("/v1/sessions")).json()["data"]
            assert (await at.client.get(f"/v1/sessions/{session['id']}")).json()["turns"] == 1
            ways = [
                await at.client.post("/v1/sessions", {"id": "resp_mine"}),
                await at.client.post("/v1/sessions", {"id": "conv_mine"}),
                await at.client.post(f"/v1/sessions/{session['id']}/rollback", {"turn": "x"}),
                await at.client.chat("x", session={"id": session["id"]}).whole(),
                await at.client.chat("x", session={"id": "resp_mine", "create": True}).whole(),
                await at.client.start("POST", "/generate", {"text": "x", "session_id": session["id"]}).whole(),
                await at.client.start(
                    "POST", "/generate", {"text": "x", "session_params": {"id": session["id"]}}
                ).whole(),
            ]
            assert [way.status for way in ways] == [400] * 7

    run(check())


def test_a_record_without_room_for_its_input_says_so(tmp_path: Path) -> None:
    """The response itself is kept all the same."""

    async def check() -> None:
        async with asking(tmp_path) as (at, _):
            store = replace(at.ingress.config.store, max_result_bytes=4000)
            at.ingress.config = replace(at.ingress.config, store=store)
            small = another_replica(at)
            made = await small.ask("x" * 5000)
            assert (await small.get(made["id"])).json() == made
            listed = await small.get(made["id"], "/input_items")
            assert (listed.status, listed.json()["error"]["code"]) == (404, "input_items_not_kept")

    run(check())
