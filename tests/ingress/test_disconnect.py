"""A client that leaves: exactly one abort, from wherever the request was, and one ending in the counters."""

from __future__ import annotations

import asyncio

import pytest

from actors.messages import Event, Reason, Submit
from tests.ingress.asgi import Call, eventually, run
from tests.ingress.harness import Edge, edge
from tests.ingress.scripted import ScriptedWorker, stopped, tokens


def assert_one_abort(worker: ScriptedWorker) -> None:
    assert [(abort.keys, abort.reason) for abort in worker.aborts] == [
        ((worker.submits[0].key,), Reason.CLIENT_DISCONNECT)
    ]


async def leave(call: Call, how: str) -> None:
    """Close the socket, as a plain server tells it or as Serve does, or lose what held it (Serve's HTTP proxy)."""
    if how == "message":
        call.disconnect()
    elif how == "error":
        call.break_off()
    else:
        call.task.cancel()
    done, _ = await asyncio.wait({call.task}, timeout=60)
    assert done, "the handler goes on for nobody"


async def settled(at: Edge) -> dict[tuple[str, str, str], int]:
    """The counters once the worker's account of the end has come."""
    await eventually(lambda: not at.ingress.metrics.open_requests)
    return at.ends()


@pytest.mark.parametrize("how", ["message", "cancel", "error"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after", [0, 3])
def test_leaving_sends_one_abort(how: str, stream: bool, after: int) -> None:
    """A1, A6, E6: field cases N01, N02, session cases A14, A15: before the first token and after some."""

    async def check() -> None:
        async with edge() as at:
            call = at.client.chat(stream=stream)
            await at.worker.submitted.wait()
            if after:
                at.worker.push(tokens(at.worker.submits[0], "x" * after))
                await (call.until("xxx") if stream else asyncio.sleep(0.01))
            await leave(call, how)
            assert_one_abort(at.worker)
            assert await settled(at) == {("abort", "client_disconnect", "decode"): 1}
            assert at.ingress.router.channels.open_lines() == {"w1": 0}
            assert not at.ingress.router.running

    run(check())


@pytest.mark.parametrize("how", ["message", "cancel", "error"])
@pytest.mark.parametrize("stream", [True, False])
def test_leaving_while_no_worker_is_ready_aborts_nothing(how: str, stream: bool) -> None:
    """A1: parked requests end here."""

    async def check() -> None:
        async with edge() as at:
            at.pool.ready = False
            call = at.client.chat(stream=stream)
            await eventually(lambda: at.ingress.router.running)
            await leave(call, how)
            assert at.ends() == {("abort", "client_disconnect", "routing"): 1}
            at.pool.ready = True
            await asyncio.sleep(0.05)
            assert at.worker.submits == []
            assert at.worker.aborts == []

    run(check())


def test_leaving_during_the_submit_still_aborts() -> None:
    """A5: the worker may get the request after its abort; it remembers."""

    class Slow(ScriptedWorker):
        def __init__(self) -> None:
            super().__init__("slow")
            self.entered, self.go = asyncio.Event(), asyncio.Event()

        async def submit(self, message: Submit) -> None:
            self.entered.set()
            await self.go.wait()
            await super().submit(message)

    async def check() -> None:
        async with edge() as at:
            slow = Slow()
            at.pool.workers = {"slow": slow}
            call = at.client.chat()
            await slow.entered.wait()
            await leave(call, "message")
            assert len(slow.aborts) == 1
            slow.script = lambda submit: [stopped(submit, 0)]
            slow.go.set()
            await settled(at)
            assert slow.aborts[0].keys == (slow.submits[0].key,)
            assert len(slow.aborts) == 1

    run(check())


@pytest.mark.parametrize("how", ["message", "error"])
def test_leaving_before_the_body_is_whole_counts_as_an_end(how: str) -> None:
    """E6: also when Serve tells of it by an exception."""

    async def check() -> None:
        async with edge() as at:
            call = at.client.start("POST", "/v1/chat/completions", b"{")
            call._incoming[0]["more_body"] = True
            await leave(call, how)
            assert at.ends() == {("abort", "client_disconnect", "ingress"): 1}

    run(check())


@pytest.mark.parametrize("stream", [True, False])
def test_an_answered_request_is_not_aborted(stream: bool) -> None:
    """E1: also when the client closes right after its last byte."""

    async def check() -> None:
        def script(submit: Submit) -> list[Event]:
            return [tokens(submit, "ok"), stopped(submit, 2)]

        async with edge(script) as at:
            call = at.client.chat(stream=stream)
            await (call.until("[DONE]") if stream else call.until("ok"))
            call.disconnect()
            await call.whole()
            assert at.worker.aborts == []
            assert at.ends() == {("stop", "", ""): 1}

    run(check())


def test_a_reader_that_stalls_is_cut_and_others_are_not() -> None:
    """A8: field case N06."""

    async def check() -> None:
        async with edge(stall_timeout_s=0.05) as at:
            stalled = at.client.chat(stream=True)
            await at.worker.submitted.wait()
            stalled.stuck = True
            at.worker.push(tokens(at.worker.submits[0], "a"))
            await stalled.task
            assert_one_abort(at.worker)
            at.worker.script = lambda submit: [tokens(submit, "ok"), stopped(submit, 2)]
            assert (await at.client.chat(stream=True).whole()).text == "ok"

    run(check())


def test_a_full_send_buffer_is_cut_at_once() -> None:
    """A8: memory for a reader that stopped is bounded."""

    async def check() -> None:
        async with edge(stall_timeout_s=30.0, send_buffer_bytes=32 * 100) as at:
            stalled = at.client.chat(stream=True)
            await at.worker.submitted.wait()
            submit = at.worker.submits[0]
            at.worker.push(tokens(submit, "a"))
            await stalled.piece()
            stalled.stuck = True
            at.worker.push(tokens(submit, "b", 1))
            await asyncio.sleep(0.05)
            assert not stalled.task.done()
            at.worker.push(tokens(submit, "c" * 101, 2))
            await stalled.task
            assert_one_abort(at.worker)

    run(check())


def test_shutdown_ends_what_runs_with_a_reason() -> None:
    """E2: a real status before the first token, an event after it; the worker is told."""

    async def check() -> None:
        async with edge() as at:
            fresh, begun = at.client.chat(), at.client.chat(stream=True)
            await eventually(lambda: len(at.worker.submits) == 2)
            at.worker.push(tokens(at.worker.submits[1], "x"))
            await begun.until("x")
            await at.ingress.close()
            await fresh.whole()
            await begun.whole()
            assert {abort.reason for abort in at.worker.aborts} == {Reason.SHUTDOWN}
            late = await at.client.chat().whole()
            assert late.json()["error"]["reason"] == "shutdown"
        assert fresh.status == 503
        assert fresh.json()["error"]["reason"] == "shutdown"
        assert begun.events[-2]["error"]["reason"] == "shutdown"

    run(check())
