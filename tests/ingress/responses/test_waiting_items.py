"""Items that were added to a conversation and wait for its next response: they are said once, or it is told that they
are gone, however late a response's record comes, and whatever had to make room."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.ingress.responses import call
from actors.ingress.responses.conversations import Conversations
from actors.records import StoreError
from tests.ingress.asgi import eventually, run
from tests.ingress.local import Cluster
from tests.ingress.responses.calls import Asker, said, text_of
from tests.ingress.responses.test_conversations import items, made
from tests.ingress.responses.test_responses import another_replica, asking

ZERO = [{"role": "user", "content": "zero"}]


def hold_records(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """What a response has to say to its conversation's record is not heard before this is set."""
    release, heard = asyncio.Event(), Conversations.said

    async def late(self: Conversations, *args: Any) -> None:
        await release.wait()
        await heard(self, *args)

    monkeypatch.setattr(call, "STORE_WAIT_S", 0.05)
    monkeypatch.setattr(Conversations, "said", late)
    return release


async def told(api: Asker, conversation: str, count: int) -> None:
    """Until so many items are listed."""
    while len(await items(api, conversation)) < count:
        pass


def test_what_a_turn_began_with_is_not_said_again_before_its_record_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: the session knows what was said, whoever asks next, at whichever replica; and it is listed once."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            conversation = (await made(api, items=ZERO))["id"]
            release = hold_records(monkeypatch)
            first = await api.ask("one", conversation=conversation)
            before = "user: zero\nuser: one\nassistant: "
            assert text_of(first) == said(before)
            second = await another_replica(at).ask("two", conversation=conversation)
            before += f"{text_of(first)}\nuser: two\nassistant: "
            assert text_of(second) == said(before)
            release.set()
            await told(api, conversation, 5)
            third = await api.ask("three", conversation=conversation)
            assert text_of(third) == said(f"{before}{text_of(second)}\nuser: three\nassistant: ")
            await told(api, conversation, 7)
            texts = [text for role, text in await items(api, conversation) if role == "user"]
            assert sorted(texts) == ["one", "three", "two", "zero"]

    run(check())


def test_what_came_to_nothing_still_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: of several that were begun with it, one has said it: the one that became a turn."""

    async def check() -> None:
        async with asking(tmp_path, step_s=0.002) as (_, api):
            conversation = (await made(api, items=ZERO))["id"]
            running = api.start("one", conversation=conversation, stream=True, max_output_tokens=400)
            await running.until("output_text.delta")
            status, error = await api.refused("busy", conversation=conversation)
            assert (status, error["reason"]) == (409, "session_busy")
            running.disconnect()
            release = hold_records(monkeypatch)
            while True:
                second = api.start("two", conversation=conversation)
                await second.whole()
                if second.status != 409:
                    break
            reply = text_of(second.json())
            assert reply == said("user: zero\nuser: two\nassistant: ")
            third = await api.ask("three", conversation=conversation)
            before = f"user: zero\nuser: two\nassistant: {reply}\nuser: three\nassistant: "
            assert text_of(third) == said(before)
            release.set()
            await told(api, conversation, 5)

    run(check())


def test_what_was_added_since_waits_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with asking(tmp_path) as (_, api):
            conversation = (await made(api, items=ZERO))["id"]
            release = hold_records(monkeypatch)
            first = await api.ask("one", conversation=conversation)
            added = {"items": [{"role": "user", "content": "more"}]}
            assert (await api.client.post(f"/v1/conversations/{conversation}/items", added)).status == 200
            second = await api.ask("two", conversation=conversation)
            before = f"user: zero\nuser: one\nassistant: {text_of(first)}\nuser: more\nuser: two\nassistant: "
            assert text_of(second) == said(before)
            release.set()
            await told(api, conversation, 6)

    run(check())


def test_a_session_that_has_gone_on_meanwhile_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S5, S6: two look at what waits, one becomes a turn; the other is not to say it again."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            conversation = (await made(api, items=ZERO))["id"]
            place, turns = at.ingress.router.target, [asyncio.Event(), asyncio.Event()]
            found: list[str] = []

            async def held(placing: Any, *args: Any) -> Any:
                if placing.session.behind is not None and placing.submit.rid not in found:
                    found.append(placing.submit.rid)
                    await turns[len(found) - 1].wait()
                return await place(placing, *args)

            monkeypatch.setattr(at.ingress.router, "target", held)
            asked = [api.start(text, conversation=conversation) for text in ("one", "two")]
            await eventually(lambda: len(found) == 2)
            turns[0].set()
            await asyncio.wait([one.task for one in asked], return_when=asyncio.FIRST_COMPLETED)
            turns[1].set()
            for one in asked:
                await one.whole()
            assert sorted(one.status for one in asked) == [200, 409]
            (done,) = (one.json() for one in asked if one.status == 200)
            _, (_, asked_with), _ = await items(api, conversation)
            assert text_of(done) == said(f"user: zero\nuser: {asked_with}\nassistant: ")
            last = await api.ask("three", conversation=conversation)
            before = f"user: zero\nuser: {asked_with}\nassistant: {text_of(done)}\n"
            assert text_of(last) == said(f"{before}user: three\nassistant: ")

    run(check())


async def forgotten(at: Cluster, conversation: str, *, state_known: bool) -> None:
    """The store needs the room that the conversation's record takes."""
    name = f"\x1fconversation {conversation}"
    record = await at.pool.get_result("default", name)
    assert record is not None
    fields: dict[str, Any] = {"owner": "", "replace": True}
    if state_known:
        await at.pool.put_result("default", name, digest=record.digest, body=b"", **fields)
    else:
        await at.pool.put_result("default", name, digest=b"x", body=b"x", ttl_s=-10.0, **fields)
        assert await at.pool.get_result("default", name) is None


@pytest.mark.parametrize("state_known", [True, False])
def test_what_had_to_make_room_is_told(tmp_path: Path, state_known: bool) -> None:
    """T6: after a response, too, there is an error instead of an answer without it; adding anew mends it."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            conversation = (await made(api))["id"]
            first = await api.ask("one", conversation=conversation)
            path, added = f"/v1/conversations/{conversation}/items", {"items": ZERO}
            assert (await api.client.post(path, added)).status == 200
            await forgotten(at, conversation, state_known=state_known)
            for _ in range(2):
                status, error = await api.refused("two", conversation=conversation)
                assert (status, error["code"], error["param"]) == (404, "conversation_not_found", "conversation")
                assert "no longer kept" in error["message"]
            assert (await api.client.post(path, added)).status == 200
            second = await api.ask("two", conversation=conversation)
            before = f"user: one\nassistant: {text_of(first)}\nuser: zero\nuser: two\nassistant: "
            assert text_of(second) == said(before)

    run(check())


def test_a_record_that_goes_while_its_items_are_said_loses_none(tmp_path: Path) -> None:
    """S2, T6: what is in the turn is in the session."""

    async def check() -> None:
        async with asking(tmp_path, step_s=0.002) as (at, api):
            conversation = (await made(api))["id"]
            first = await api.ask("one", conversation=conversation)
            added = {"items": ZERO}
            assert (await api.client.post(f"/v1/conversations/{conversation}/items", added)).status == 200
            running = api.start("two", conversation=conversation, stream=True, max_output_tokens=50)
            await running.until("output_text.delta")
            await forgotten(at, conversation, state_known=True)
            await running.whole()
            reply = text_of(running.events[-1]["response"])
            third = await api.ask("three", conversation=conversation)
            before = f"user: one\nassistant: {text_of(first)}\nuser: zero\nuser: two\nassistant: {reply}\n"
            assert text_of(third) == said(f"{before}user: three\nassistant: ")

    run(check())


def test_a_store_that_is_away_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6, E4: what cannot be noted is not begun."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            conversation = (await made(api, items=ZERO))["id"]

            async def away(*args: Any, **fields: Any) -> Any:
                raise StoreError("away")

            monkeypatch.setattr(at.pool, "put_result", away)
            status, error = await api.refused("one", conversation=conversation)
            assert (status, error["reason"]) == (500, "internal")
            monkeypatch.undo()
            assert text_of(await api.ask("one", conversation=conversation)) == said(
                "user: zero\nuser: one\nassistant: "
            )

    run(check())


@pytest.mark.parametrize("late", [False, True])
def test_what_was_added_is_not_taken_by_a_response_that_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """T2, T6: it is answered as it was, whether its record is there yet; what waits goes with the next."""

    async def check() -> None:
        async with asking(tmp_path) as (_, api):
            conversation = (await made(api))["id"]
            release = hold_records(monkeypatch) if late else None
            key = {"idempotency-key": "k"}
            first = await api.ask("one", key, conversation=conversation)
            added = {"items": [{"role": "user", "content": "more"}]}
            assert (await api.client.post(f"/v1/conversations/{conversation}/items", added)).status == 200
            again = await api.ask("one", key, conversation=conversation)
            assert (again["replayed"], text_of(again)) == (True, text_of(first))
            second = await api.ask("two", conversation=conversation)
            before = f"user: one\nassistant: {text_of(first)}\nuser: more\nuser: two\nassistant: "
            assert text_of(second) == said(before)
            if release is not None:
                release.set()
                await told(api, conversation, 5)

    run(check())


def test_what_was_added_is_no_part_of_a_response_that_is_joined(tmp_path: Path) -> None:
    """T2, T6: who joins it hears what it was begun with; what came since waits for the next."""

    async def check() -> None:
        async with asking(tmp_path, step_s=0.01) as (_, api):
            conversation = (await made(api, items=ZERO))["id"]
            fields = {"conversation": conversation, "max_output_tokens": 60, "stream": True, "on_duplicate": "join"}
            first = api.start("one", {"idempotency-key": "k"}, **fields)
            await first.until("output_text.delta")
            added = {"items": [{"role": "user", "content": "more"}]}
            assert (await api.client.post(f"/v1/conversations/{conversation}/items", added)).status == 200
            joined = api.start("one", {"idempotency-key": "k"}, **fields)
            replies = [text_of((await one.whole()).events[-1]["response"]) for one in (first, joined)]
            assert replies[0] == replies[1] == said("user: zero\nuser: one\nassistant: ", 60)
            second = await api.ask("two", conversation=conversation)
            before = f"user: zero\nuser: one\nassistant: {replies[0]}\nuser: more\nuser: two\nassistant: "
            assert text_of(second) == said(before)
            assert [text for role, text in await items(api, conversation) if role == "user"] == [
                "zero",
                "one",
                "more",
                "two",
            ]

    run(check())
