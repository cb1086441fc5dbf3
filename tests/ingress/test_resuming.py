"""A request goes on when its worker is lost (rule T4), and a running one can be joined (rule T2)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.messages import Event, Reason, Submit
from actors.ports import Placement
from tests.ingress.asgi import eventually, run
from tests.ingress.harness import edge
from tests.ingress.local import cluster
from tests.ingress.scripted import aborted, stopped, tokens
from tests.ingress.test_routing import opened, submits
from tests.ingress.test_with_workers import chat, reply, text_of

SESSION = {"id": "s", "create": True}


def test_a_stream_goes_on_elsewhere_behind_what_was_delivered() -> None:
    """T4: the next worker is told what the client has; no token is repeated, none is missing."""

    async def check() -> None:
        async with edge(workers=3) as at:
            await opened(at)
            call = at.client.chat(stream=True, session={"id": "s"}, on_worker_lost="resume")
            await at.worker.submitted.wait()
            at.worker.push(tokens(at.worker.submits[0], "par"))
            await call.until("par")
            at.pool.workers["w2"].script = lambda s: [tokens(s, "ti", 3), tokens(s, "al", 5), stopped(s, 7)]
            at.worker.die()
            await call.whole()
            assert call.text == "partial"
            assert [bytes(submit.resumed_ids) for _, submit in submits(at)] == [b"", b"par"]
            assert at.ends() == {("stop", "", ""): 1}

    run(check())


@pytest.mark.parametrize("reason", [Reason.WORKER_LOST, Reason.WORKER_DRAINING])
def test_tokens_that_come_with_the_loss_are_delivered_and_counted(reason: Reason) -> None:
    """T4: in one frame with the end of the attempt."""

    async def check() -> None:
        def script(submit: Submit) -> list[Event]:
            if submit.resumed_ids:
                return [tokens(submit, "def", 3), stopped(submit, 6)]
            return [tokens(submit, "abc"), aborted(submit, reason, completion_tokens=3)]

        async with edge(script) as at:
            await opened(at)
            call = await at.client.chat(stream=True, session={"id": "s"}, on_worker_lost="resume").whole()
            assert call.text == "abcdef"

    run(check())


def test_a_unary_answer_is_completed_elsewhere_unasked() -> None:
    """T4: nothing of it was shown to the client yet, so that the client never learns of it."""

    async def check() -> None:
        async with edge(workers=2) as at:
            await opened(at)
            call = at.client.chat(session={"id": "s"})
            await at.worker.submitted.wait()
            at.worker.push(tokens(at.worker.submits[0], "par"))
            await asyncio.sleep(0.02)
            at.pool.workers["w2"].script = lambda s: [
                tokens(s, "partial"[len(s.resumed_ids) :], len(s.resumed_ids)),
                stopped(s, 7),
            ]
            at.worker.die()
            await call.whole()
            assert (call.status, text_of(call)) == (200, "partial")

    run(check())


@pytest.mark.parametrize("begun", [False, True])
def test_the_search_for_another_worker_begins_when_the_worker_is_lost(begun: bool) -> None:
    """T4, C1: without a waiting timeout a request may queue for minutes; the worker is lost before its first token is
    told. It goes on elsewhere, and the search has all the time a search has."""
    now = [0.0]

    async def check() -> None:
        def script(submit: Submit) -> list[Event]:
            text = "ab"[len(submit.resumed_ids) :]
            return [tokens(submit, text, len(submit.resumed_ids)), stopped(submit, 2)]

        async with edge(workers=2, clock=lambda: now[0]) as at:
            await opened(at)
            at.pool.workers["w2"].script = script
            place = at.pool.place

            async def slow(*args: Any, **fields: Any) -> Placement:
                await asyncio.sleep(0.02)
                return await place(*args, **fields)

            at.pool.place = slow  # type: ignore[method-assign]
            call = at.client.chat(session={"id": "s"}, stream=True, on_worker_lost="resume")
            await at.worker.submitted.wait()
            now[0] = 120.0
            at.worker.alive = False
            submit = at.worker.submits[0]
            lost = aborted(submit, Reason.WORKER_LOST, completion_tokens=int(begun))
            at.worker.push(*([tokens(submit, "a")] if begun else []), lost)
            await call.whole()
            assert (call.status, call.text) == (200, "ab")
            assert len(submits(at)) == 2

    run(check())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("session", [SESSION, None])
def test_a_killed_workers_stream_equals_that_of_a_living_one(
    tmp_path: Path, stream: bool, session: dict[str, Any] | None
) -> None:
    """T4, S2: real workers: the text is what it would have been, usage counts all of it, and the turn is history."""

    async def check() -> None:
        async with cluster(tmp_path, workers=2, step_s=0.01) as at:
            call = chat(at, "one", stream=stream, max_tokens=60, session=session, on_worker_lost="resume")
            await eventually(lambda: any(at.shell(name).stats()["output_tokens"] > 10 for name in ("w1", "w2")))
            (busy,) = (name for name in ("w1", "w2") if at.shell(name).stats()["running"])
            other = "w2" if busy == "w1" else "w1"
            await asyncio.to_thread(at.pool.workers[busy].kill)
            await call.whole()
            text = call.text if stream else text_of(call)
            assert text == reply("user: one\nassistant: ", 60)
            assert 0 < at.shell(other).stats()["output_tokens"] < 60
            if session is not None:
                second = await chat(at, "two", session={"id": "s"}).whole()
                assert text_of(second) == reply(f"user: one\nassistant: {text}\nuser: two\nassistant: ", 8)

    run(check())


def test_a_turn_does_not_go_on_from_what_its_session_has_become(tmp_path: Path) -> None:
    """T4, T6, S6: another turn was faster than the search for a worker; the stream ends with an error that says so."""

    async def check() -> None:
        async with cluster(tmp_path, workers=2, step_s=0.01) as at:
            await chat(at, "zero", session=SESSION).whole()
            call = chat(at, "one", stream=True, max_tokens=60, session={"id": "s"}, on_worker_lost="resume")
            await eventually(lambda: at.shell("w1").stats()["output_tokens"] > 15)
            place = at.pool.place

            async def slower(tenant: str, session_id: str, *, avoid: str | None = None) -> Placement:
                at.pool.place = place  # type: ignore[method-assign]
                other = await chat(at, "two", session={"id": "s"}).whole()
                assert text_of(other)
                return await place(tenant, session_id, avoid=avoid)

            at.pool.place = slower  # type: ignore[method-assign]
            await asyncio.to_thread(at.pool.workers["w1"].kill)
            await call.whole()
            assert call.events[-2]["error"]["reason"] == "worker_lost"
            assert (await at.client.get("/v1/sessions/s")).json()["turns"] == 2

    run(check())


def test_both_callers_of_a_running_turn_hear_all_of_it(tmp_path: Path) -> None:
    """T2: field case N28 (c): the later one joins, streamed or not; it is computed once."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.01) as at:
            named = {"rid": "r", "max_tokens": 40, "session": SESSION, "on_duplicate": "join"}
            first = chat(at, "one", stream=True, **named)
            await eventually(lambda: at.shell().stats()["output_tokens"] > 5)
            second = chat(at, "one", **named)
            refused = chat(at, "one", **{**named, "on_duplicate": "reject"})
            other = chat(at, "another", **named)
            for call in (first, second, refused, other):
                await call.whole()
            assert first.text == text_of(second) == reply("user: one\nassistant: ", 40)
            assert (refused.status, other.status) == (409, 422)
            assert at.shell().stats()["output_tokens"] == 40

    run(check())


def test_wrong_choices_are_named() -> None:
    """I1."""

    async def check() -> None:
        async with edge() as at:
            for field in ("on_duplicate", "on_worker_lost"):
                call = await at.client.chat(**{field: "maybe"}).whole()
                assert (call.status, call.json()["error"]["param"]) == (400, field)

    run(check())
