"""/v1/conversations: sessions that are gone on with, and what is listed of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.ingress import storing
from actors.ingress.responses.conversations import LOCK_WAIT_S
from tests.ingress.asgi import Call, run
from tests.ingress.responses.calls import Asker, said, text_of
from tests.ingress.responses.test_background import done
from tests.ingress.responses.test_responses import another_replica, asking

UNKNOWN = "conv_" + "0" * 24


async def made(api: Asker, **fields: Any) -> Any:
    call = await api.client.post("/v1/conversations", fields)
    assert call.status == 200, call.body
    return call.json()


async def items(api: Asker, conversation_id: str, query: str = "?order=asc") -> list[tuple[str, str]]:
    listed = (await api.client.get(f"/v1/conversations/{conversation_id}/items{query}")).json()["data"]
    return [(item["role"], item["content"][0]["text"]) for item in listed]


def test_responses_go_on_with_a_conversation(tmp_path: Path) -> None:
    """P5, K1: its id or an object that has it; items are listed as they were said."""

    async def check() -> None:
        async with asking(tmp_path, workers=2) as (at, api):
            conversation = await made(api, metadata={"a": "b"})
            assert (conversation["object"], conversation["metadata"]) == ("conversation", {"a": "b"})
            first = await api.ask("one", conversation=conversation["id"])
            assert first["conversation"] == {"id": conversation["id"]}
            second = await another_replica(at).ask("two", conversation={"id": conversation["id"]}, stream=True)
            before = f"user: one\nassistant: {text_of(first)}\n"
            assert text_of(second) == said(f"{before}user: two\nassistant: ")
            assert second["usage"]["input_tokens_details"]["cached_tokens"] in (len(before) - 1, len(before) - 2)
            assert await items(api, conversation["id"]) == [
                ("user", "one"),
                ("assistant", text_of(first)),
                ("user", "two"),
                ("assistant", text_of(second)),
            ]
            newest = await items(api, conversation["id"], "?limit=1")
            assert newest == [("assistant", text_of(second))]
            item = second["output"][0]
            found = await api.client.get(f"/v1/conversations/{conversation['id']}/items/{item['id']}")
            assert found.json() == item

    run(check())


def test_items_that_were_added_stand_before_the_next_input(tmp_path: Path) -> None:
    """S2: history changes when a response ends; until then they wait, and can be taken back."""

    async def check() -> None:
        async with asking(tmp_path) as (_, api):
            start = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "zero"}]
            conversation = (await made(api, items=start))["id"]
            path = f"/v1/conversations/{conversation}/items"
            more = [{"role": "assistant", "content": "hello"}, {"role": "user", "content": "never mind"}]
            added = (await api.client.post(path, {"items": more})).json()
            assert [item["content"][0]["text"] for item in added["data"]] == ["hello", "never mind"]
            gone = await api.delete(f"{path}/{added['last_id']}")
            assert (gone.status, gone.json()["id"]) == (200, conversation)
            before = "system: be brief\nuser: zero\nassistant: hello\nuser: one\nassistant: "
            first = await api.ask("one", conversation=conversation)
            assert text_of(first) == said(before)
            second = await api.ask("two", conversation=conversation)
            assert text_of(second) == said(f"{before}{text_of(first)}\nuser: two\nassistant: ")
            roles = [role for role, _ in await items(api, conversation)]
            assert roles == ["system", "user", "assistant", "user", "assistant", "user", "assistant"]
            history = await api.delete(f"{path}/{added['first_id']}")
            assert (history.status, history.json()["error"]["code"]) == (400, "item_in_history")

    run(check())


def test_metadata_is_replaced(tmp_path: Path) -> None:
    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            conversation = await made(api, metadata={"a": "b"})
            path = f"/v1/conversations/{conversation['id']}"
            updated = (await api.client.post(path, {"metadata": {"c": "d"}})).json()
            assert updated == {**conversation, "metadata": {"c": "d"}}
            assert (await another_replica(at).client.get(path)).json() == updated
            for wrong in ({}, {"metadata": 5}, {"metadata": {"a": 5}}):
                assert (await api.client.post(path, wrong)).status == 400

    run(check())


def test_changes_at_once_do_not_undo_each_other(tmp_path: Path) -> None:
    """From several replicas: none is lost."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            conversation = (await made(api))["id"]
            replicas = [another_replica(at) for _ in range(4)]
            path = f"/v1/conversations/{conversation}/items"

            async def add(number: int) -> Call:
                body = {"items": [{"role": "user", "content": f"m{number}"}]}
                return await replicas[number % 4].client.post(path, body)

            calls = await asyncio.gather(*(add(number) for number in range(12)))
            assert {call.status for call in calls} == {200}
            assert {text for _, text in await items(api, conversation)} == {f"m{n}" for n in range(12)}

    run(check())


def test_one_response_at_a_time(tmp_path: Path) -> None:
    """S6: the second is refused, and the first does not notice."""

    async def check() -> None:
        async with asking(tmp_path, step_s=0.002) as (_, api):
            conversation = (await made(api))["id"]
            running = api.start("one", conversation=conversation, stream=True, max_output_tokens=100)
            await running.until("output_text.delta")
            status, error = await api.refused("two", conversation=conversation)
            assert (status, error["reason"], error["param"]) == (409, "session_busy", "conversation")
            await running.whole()
            assert running.events[-1]["type"] == "response.incomplete"
            late = await api.ask("three", conversation=conversation, background=True)
            assert (await done(api, late["id"]))["status"] == "incomplete"
            assert [text for role, text in await items(api, conversation) if role == "user"] == ["one", "three"]

    run(check())


def test_what_ended_in_an_error_is_not_listed(tmp_path: Path) -> None:
    """S2: neither its input nor its output; what waited still waits."""

    async def check() -> None:
        async with asking(tmp_path, step_s=0.002) as (_, api):
            conversation = (await made(api, items=[{"role": "user", "content": "zero"}]))["id"]
            asked = {"conversation": conversation, "background": True, "max_output_tokens": 4000}
            failed = await api.ask("one", running_timeout_s=0.05, **asked)
            assert (await done(api, failed["id"]))["status"] == "failed"
            running = await api.ask("two", **asked)
            assert (await api.cancel(running["id"])).json()["status"] == "cancelled"
            assert await items(api, conversation) == [("user", "zero")]
            third = await api.ask("three", conversation=conversation)
            assert text_of(third) == said("user: zero\nuser: three\nassistant: ")

    run(check())


def test_a_response_of_a_conversation_is_branched_from_without_touching_it(tmp_path: Path) -> None:
    """S12: in a session of its own, which begins with what was said up to there."""

    async def check() -> None:
        async with asking(tmp_path, workers=2) as (_, api):
            conversation = (await made(api))["id"]
            first = await api.ask("one", conversation=conversation)
            second = await api.ask("two", conversation=conversation)
            before = f"user: one\nassistant: {text_of(first)}\n"
            branch = await api.ask("other", previous_response_id=first["id"])
            assert text_of(branch) == said(f"{before}user: other\nassistant: ")
            deeper = await api.ask("more", previous_response_id=branch["id"])
            assert deeper["usage"]["input_tokens"] > branch["usage"]["total_tokens"]
            third = await api.ask("three", conversation=conversation)
            whole = f"{before}user: two\nassistant: {text_of(second)}\nuser: three\nassistant: "
            assert text_of(third) == said(whole)

    run(check())


def test_instructions_in_a_conversation(tmp_path: Path) -> None:
    """As in a chain: the same again add nothing, others are refused where the template has no place for them."""

    async def check() -> None:
        async with asking(tmp_path) as (_, api):
            conversation = (await made(api))["id"]
            first = await api.ask("one", conversation=conversation, instructions="be brief")
            second = await api.ask("two", conversation=conversation, instructions="be brief")
            before = f"system: be brief\nuser: one\nassistant: {text_of(first)}\n"
            assert text_of(second) == said(f"{before}user: two\nassistant: ")
            status, error = await api.refused("three", conversation=conversation, instructions="be long")
            assert (status, error["param"]) == (400, "instructions")

    run(check())


def test_a_conversation_is_deleted(tmp_path: Path) -> None:
    """S9: its session is closed; its responses can still be looked at."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            conversation = (await made(api))["id"]
            first = await api.ask("one", conversation=conversation)
            path = f"/v1/conversations/{conversation}"
            gone = await api.delete(path)
            assert gone.json() == {"id": conversation, "object": "conversation.deleted", "deleted": True}
            assert (await at.client.get("/v1/sessions")).json()["data"] == []
            for call in (
                await api.client.get(path),
                await api.client.post(path, {"metadata": {}}),
                await api.delete(path),
                await api.client.get(f"{path}/items"),
                await api.client.post(f"{path}/items", {"items": [{"role": "user", "content": "x"}]}),
            ):
                assert (call.status, call.json()["error"]["code"]) == (404, "conversation_not_found")
            status, error = await api.refused("two", conversation=conversation)
            assert (status, error["code"], error["param"]) == (404, "conversation_not_found", "conversation")
            assert (await api.get(first["id"])).json() == first

    run(check())


def test_a_record_that_had_to_make_room_takes_no_history_with_it(tmp_path: Path) -> None:
    """S1: what is listed is lost; what the model has seen is not."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            conversation = (await made(api))["id"]
            first = await api.ask("one", conversation=conversation)
            await at.pool.put_result(
                "default", f"\x1fconversation {conversation}", digest=b"", owner="", body=b"", replace=True
            )
            assert await items(api, conversation) == []
            second = await api.ask("two", conversation=conversation)
            assert text_of(second) == said(f"user: one\nassistant: {text_of(first)}\nuser: two\nassistant: ")
            assert [role for role, _ in await items(api, conversation)] == ["user", "assistant"]

    run(check())


def test_what_was_stored_unheard_is_not_stored_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool writes what was said and does not say so in time: offered again, it is there already."""
    monkeypatch.setattr(storing, "ANSWER_S", 0.05)
    monkeypatch.setattr(storing, "STORE_PAUSE_S", 0.0)

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            conversation = (await made(api))["id"]
            put = at.pool.put_result

            async def silent(tenant: str, key: str, **fields: Any) -> Any:
                stored = await put(tenant, key, **fields)
                if key.startswith("\x1fconversation"):
                    monkeypatch.setattr(at.pool, "put_result", put)
                    await asyncio.Event().wait()
                return stored

            monkeypatch.setattr(at.pool, "put_result", silent)
            said = await api.ask("one", conversation=conversation)
            assert await items(api, conversation) == [("user", "one"), ("assistant", text_of(said))]

    run(check())


def test_a_lock_that_was_perhaps_had_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool takes the lock and does not say so in time: whoever comes next need not wait until it lapses."""
    monkeypatch.setattr(storing, "ANSWER_S", 0.05)

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            conversation = (await made(api))["id"]
            claim = at.pool.claim_result

            async def silent(*args: Any, **fields: Any) -> Any:
                monkeypatch.setattr(at.pool, "claim_result", claim)
                await claim(*args, **fields)
                await asyncio.Event().wait()

            monkeypatch.setattr(at.pool, "claim_result", silent)
            path, added = f"/v1/conversations/{conversation}/items", {"items": [{"role": "user", "content": "x"}]}
            assert (await api.client.post(path, added)).status >= 500
            began = asyncio.get_running_loop().time()
            assert (await api.client.post(path, added)).status == 200
            assert asyncio.get_running_loop().time() - began < LOCK_WAIT_S

    run(check())


def test_what_no_response_has_seen_is_not_lost_unseen(tmp_path: Path) -> None:
    """T6: items that were added are in the record only: without it there is nothing to go on from."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            added = [{"role": "user", "content": "my name is Ann"}]
            conversation = (await made(api, items=added))["id"]
            await at.pool.put_result(
                "default", f"\x1fconversation {conversation}", digest=b"", owner="", body=b"", replace=True
            )
            body = {"input": "who am I?", "conversation": conversation}
            call = await api.client.post("/v1/responses", body)
            error = call.json()["error"]
            assert (call.status, error["code"], error["param"]) == (404, "conversation_not_found", "conversation")
            assert "no longer kept" in error["message"]

    run(check())


@pytest.mark.parametrize("unknown", ["x", "conv_", UNKNOWN, "conv_" + "0" * 23 + "Z"])
def test_an_unknown_conversation_is_not_found(tmp_path: Path, unknown: str) -> None:
    """E3."""

    async def check() -> None:
        async with asking(tmp_path) as (_, api):
            path = f"/v1/conversations/{unknown}"
            calls = [
                await api.client.get(path),
                await api.delete(path),
                await api.client.post(path, {"metadata": {}}),
                await api.client.get(f"{path}/items/msg_1"),
                await api.delete(f"{path}/items/msg_1"),
            ]
            assert {(call.status, call.json()["error"]["reason"]) for call in calls} == {(404, "session_unknown")}

    run(check())


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("items", {"items": "x"}),
    ("items", {"items": [{"role": "user", "content": "x"}] * 21}),
    ("items[0].role", {"items": [{"role": "alien", "content": "x"}]}),
    ("items[0].content", {"items": [{"role": "user", "content": None}]}),
    ("metadata", {"metadata": "x"}),
]


@pytest.mark.parametrize(("param", "body"), WRONG)
def test_wrong_values_name_the_field(tmp_path: Path, param: str, body: dict[str, Any]) -> None:
    """I1: and no session is opened."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            call = await api.client.post("/v1/conversations", body)
            assert (call.status, call.json()["error"]["param"]) == (400, param)
            assert (await at.client.get("/v1/sessions")).json()["data"] == []

    run(check())
