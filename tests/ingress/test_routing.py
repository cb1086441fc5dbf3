"""Where requests go, and when they go again: only before the first token (rules T3, T4, S14, P1)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from actors.messages import Event, Reason, Stage, Submit
from configs import TimeoutConfig
from tests.ingress.asgi import run
from tests.ingress.harness import Edge, edge
from tests.ingress.scripted import aborted, says, stopped, tokens

SESSION = {"id": "s"}


async def opened(at: Edge, session_id: str = "s", **fields: object) -> None:
    call = await at.client.post("/v1/sessions", {"id": session_id, **fields})
    assert call.status == 200, call.body


def submits(at: Edge) -> list[tuple[str, Submit]]:
    return [(worker.worker_id, submit) for worker in at.pool.workers.values() for submit in worker.submits]


def test_a_session_turn_carries_what_the_worker_needs() -> None:
    """S3, S4: both renderings, the closing ids, generation and epoch; only the new messages are sent."""

    async def check() -> None:
        async with edge(says("x")) as at:
            await opened(at)
            call = await at.client.chat("two", session={"id": "s", "parent": "r1", "on_busy": "queue"}).whole()
            submit = at.worker.submits[0]
            assert bytes(submit.input_ids) == b"user: two\nassistant: "
            assert submit.close_ids == tuple(b"\n")
            assert submit.root_ids is None  # `parent` names a turn: there is history or nothing
            assert submit.turn is not None
            assert (submit.turn.session_id, submit.turn.generation, submit.turn.epoch) == ("s", 1, 1)
            assert (submit.turn.from_head, submit.turn.parent, submit.turn.on_busy) == (False, "r1", "queue")
            assert call.json()["session"] == {"id": "s", "turn": 0, "worker": "w1"}
            assert call.headers["x-remora-worker"] == "w1"
            assert call.json()["id"] == submit.rid

    run(check())


def test_a_placement_is_asked_for_once_and_remembered() -> None:
    """P1: the pool is off the data path."""

    async def check() -> None:
        async with edge(says("x"), workers=2) as at:
            await opened(at)
            for _ in range(3):
                assert (await at.client.chat(session=SESSION).whole()).status == 200
            assert at.pool.places == 0
            assert {worker_id for worker_id, _ in submits(at)} == {"w1"}

    run(check())


def test_an_unknown_session_is_404_and_create_opens_it() -> None:
    """S14."""

    async def check() -> None:
        async with edge(says("x")) as at:
            call = await at.client.chat(session=SESSION).whole()
            assert call.status == 404
            assert call.json()["error"]["param"] == "session.id"
            assert at.worker.submits == []
            made = await at.client.chat(session={"id": "s", "create": True, "mode": "streaming"}).whole()
            assert made.status == 200
            assert at.pool.sessions["s"].mode.value == "streaming"
            again = await at.client.chat(session={"id": "s", "create": True}).whole()
            assert again.status == 200
            assert [submit.turn.create for submit in at.worker.submits if submit.turn] == [True, True]
            other = await at.client.chat(session={"id": "s", "mode": "tree"}).whole()
            assert (other.status, other.json()["error"]["param"]) == (400, "session.mode")

    run(check())


def test_a_redirect_is_followed_unseen() -> None:
    """T3: the old owner refuses, the pool knows the new one; the attempt has a new key and the new epoch."""

    def script(submit: Submit) -> list[Event]:
        assert submit.turn is not None
        if submit.turn.epoch == 1:
            return [aborted(submit, Reason.WORKER_LOST, redirect=True)]
        return says("ok")(submit)

    async def check() -> None:
        async with edge(script, workers=2) as at:
            await opened(at)
            at.pool.move("s", "w2")
            call = await at.client.chat(stream=True, session=SESSION).whole()
            assert call.text == "ok"
            assert call.headers["x-remora-worker"] == "w2"
            assert [worker_id for worker_id, _ in submits(at)] == ["w1", "w2"]
            keys = {submit.key for _, submit in submits(at)}
            assert len(keys) == 2
            assert at.ends() == {("stop", "", ""): 1}

    run(check())


def test_a_worker_that_dies_before_the_first_token_is_replaced_unseen() -> None:
    """T4."""

    async def check() -> None:
        async with edge(workers=2) as at:
            await opened(at)
            call = at.client.chat(stream=True, session=SESSION)
            await at.worker.submitted.wait()
            at.pool.workers["w2"].script = says("from w2")
            at.worker.die()
            await call.whole()
            assert call.text == "from w2"

    run(check())


def test_a_worker_that_dies_after_the_first_token_is_an_error() -> None:
    """T4, E4: worker_lost, retryable, with the partial text; nothing runs twice."""

    async def check() -> None:
        async with edge(workers=2) as at:
            await opened(at)
            call = at.client.chat(stream=True, session=SESSION)
            await at.worker.submitted.wait()
            at.worker.push(tokens(at.worker.submits[0], "par"))
            await call.until("par")
            at.worker.die()
            await call.whole()
            error = call.events[-2]["error"]
            assert (error["reason"], error["stage"], error["retryable"]) == ("worker_lost", "decode", True)
            assert error["partial"] == {"text": "par", "completion_tokens": 3}
            assert call.status == 200
            assert len(submits(at)) == 1
            assert at.ends() == {("abort", "worker_lost", "decode"): 1}

    run(check())


def test_a_submit_that_cannot_be_delivered_goes_elsewhere() -> None:
    async def check() -> None:
        async with edge(says("ok"), workers=2) as at:
            for worker in at.pool.workers.values():
                worker.refuses_submits = worker is at.worker
            calls = [await at.client.chat(f"hello {number}").whole() for number in range(6)]
            assert {call.status for call in calls} == {200}
            assert {worker_id for worker_id, _ in submits(at)} == {"w2"}

    run(check())


def test_redirects_end_some_time() -> None:
    """E1: an owner that nobody is cannot be sought for ever."""

    async def check() -> None:
        async with edge(lambda submit: [aborted(submit, Reason.WORKER_LOST, redirect=True)]) as at:
            await opened(at)
            call = await at.client.chat(session=SESSION).whole()
            assert (call.status, call.json()["error"]["reason"]) == (503, "worker_lost")
            assert len(at.worker.submits) < 12

    run(check())


def test_a_remembered_placement_of_a_closed_session_is_looked_up_again() -> None:
    """S9: closed and opened again through another ingress; the worker knows only the new generation."""

    def script(submit: Submit) -> list[Event]:
        assert submit.turn is not None
        if submit.turn.generation == 1:
            return [aborted(submit, Reason.SESSION_UNKNOWN)]
        return says("new")(submit)

    async def check() -> None:
        async with edge(script) as at:
            await opened(at)
            at.pool.sessions["s"] = replace(at.pool.sessions["s"], generation=2)
            call = await at.client.chat(session=SESSION).whole()
            assert call.json()["choices"][0]["message"]["content"] == "new"
            del at.pool.sessions["s"]
            at.worker.script = lambda submit: [aborted(submit, Reason.SESSION_UNKNOWN)]
            gone = await at.client.chat(session=SESSION).whole()
            assert gone.status == 404

    run(check())


def test_a_gap_in_the_events_is_a_lost_worker_and_its_request_is_stopped_there() -> None:
    """Design: events carry an index, so a gap is noticed; text with a hole is never shown."""

    async def check() -> None:
        async with edge() as at:
            call = at.client.chat(stream=True)
            await at.worker.submitted.wait()
            submit = at.worker.submits[0]
            at.worker.push(tokens(submit, "ab"))
            await call.until("ab")
            at.worker.push(tokens(submit, "d", 3))
            await call.whole()
            assert call.text == "ab"
            assert call.events[-2]["error"]["reason"] == "worker_lost"
            assert [abort.keys for abort in at.worker.aborts] == [(submit.key,)]

    run(check())


def test_repeated_events_are_heard_once_and_late_ones_by_nobody() -> None:
    async def check() -> None:
        async with edge() as at:
            call = at.client.chat(stream=True)
            await at.worker.submitted.wait()
            submit = at.worker.submits[0]
            at.worker.push(tokens(submit, "ab"), tokens(submit, "ab"), tokens(submit, "bc", 1))
            at.worker.push(*says("")(replace(submit, key="of an earlier life")))
            await call.until("abc")
            at.worker.push(aborted(submit, Reason.CLIENT_ABORT, Stage.DECODE, completion_tokens=3))
            await call.whole()
            assert call.text == "abc"
            assert call.events[-2]["choices"][0]["finish_reason"] == "abort"

    run(check())


def test_a_parked_request_obeys_its_waiting_timeout_and_its_deadline() -> None:
    """C1: parking counts."""

    async def check() -> None:
        async with edge() as at:
            at.pool.ready = False
            waiting = await at.client.chat(waiting_timeout_s=0.03).whole()
            late = await at.client.chat(deadline_s=0.03).whole()
            assert waiting.json()["error"]["reason"] == "waiting_timeout"
            assert late.json()["error"]["reason"] == "deadline"
            assert waiting.json()["error"]["stage"] == "routing"

    run(check())


def test_a_silent_pool_costs_a_request_no_more_than_its_own_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1, E3, E6: kept alive meanwhile, then one error event, counted once."""

    async def check() -> None:
        async with edge(keepalive_after_s=0.02) as at:
            await opened(at)
            at.ingress.router.forget("default", "s")

            async def silent(*args: object, **kwargs: object) -> None:
                await asyncio.Event().wait()

            monkeypatch.setattr(at.pool, "place", silent)
            call = await at.client.chat(stream=True, session=SESSION, waiting_timeout_s=0.1).whole()
            assert b": keep-alive" in call.body
            assert call.events[-2]["error"]["reason"] == "waiting_timeout"
            assert at.ends() == {("abort", "waiting_timeout", "routing"): 1}
            assert at.ingress.metrics.open_requests == 0

    run(check())


def test_a_silent_pool_does_not_delay_requests_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: the workers known so far take them."""

    async def check() -> None:
        async with edge(says("x")) as at:
            assert (await at.client.chat().whole()).status == 200

            async def silent() -> None:
                await asyncio.Event().wait()

            monkeypatch.setattr(at.pool, "members", silent)
            at.ingress.router._members_ttl_s = 0.0
            for _ in range(3):
                assert (await at.client.chat().whole()).status == 200

    run(check())


def test_a_replayed_answer_says_so() -> None:
    """T2."""

    async def check() -> None:
        async with edge(lambda submit: [tokens(submit, "x"), stopped(submit, 1, replayed=True)]) as at:
            unary = await at.client.chat(rid="job-1").whole()
            stream = await at.client.chat(rid="job-1", stream=True).whole()
            assert unary.json()["replayed"] is True
            assert stream.events[-2]["replayed"] is True
            assert unary.json()["id"] == "job-1"

    run(check())


def test_time_spent_parked_is_taken_off_the_workers_clocks() -> None:
    """C1: the server's default waiting timeout too."""

    async def check() -> None:
        async with edge(says("x"), timeouts=TimeoutConfig(waiting_s=20.0)) as at:
            at.pool.ready = False
            call = at.client.chat(deadline_s=10.0)
            await asyncio.sleep(0.05)
            at.pool.ready = True
            at.ingress.router._members_at = None
            await call.whole()
            submit = at.worker.submits[0]
            assert submit.deadline_s is not None
            assert submit.waiting_timeout_s is not None
            assert 5.0 < submit.deadline_s < 9.96
            assert 10.0 < submit.waiting_timeout_s < 19.96

    run(check())


def test_a_stateless_conversation_stays_on_one_worker_and_headers_steer_it() -> None:
    """P4, P5: the same opening goes to the same place; a header decides before it, and never makes a session."""

    async def check() -> None:
        async with edge(says("x"), workers=3) as at:
            opening = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "q1"}]
            more = [*opening, {"role": "assistant", "content": "x"}, {"role": "user", "content": "q2"}]
            first = await at.client.chat(opening).whole()
            second = await at.client.chat(more).whole()
            assert first.headers["x-remora-worker"] == second.headers["x-remora-worker"]
            assert len({(await at.client.chat(f"other {i}").whole()).headers["x-remora-worker"] for i in range(20)}) > 1
            steered = [
                (await at.client.chat(f"q{i}", headers={"x-session-id": "日".encode().decode("latin-1")}).whole())
                for i in range(6)
            ]
            assert len({call.headers["x-remora-worker"] for call in steered}) == 1
            assert all("session" not in call.json() for call in steered)
            assert at.pool.sessions == {}
            assert all(submit.turn is None for _, submit in submits(at))

    run(check())
