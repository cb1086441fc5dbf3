"""SSE bytes of a chat answer: order, keys, usage, errors, keep-alive, UTF-8 and stop strings."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from actors.messages import Event, Outcome, Reason, Stage, Submit
from tests.ingress.asgi import run
from tests.ingress.harness import edge
from tests.ingress.scripted import aborted, says, stopped, tokens


def test_chunks_have_the_shape_that_strict_readers_want() -> None:
    """E3: field case N53: role first, finish_reason null but in the last, one id, [DONE] once and last."""

    async def check() -> None:
        async with edge(says("hi there")) as at:
            call = await at.client.chat(stream=True).whole()
        assert call.status == 200
        assert call.headers["content-type"].startswith("text/event-stream")
        assert call.events[-1] == "[DONE]"
        assert call.events.count("[DONE]") == 1
        chunks = call.events[:-1]
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert reasons == [None] * (len(chunks) - 1) + ["stop"]
        assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
        assert all("usage" not in chunk for chunk in chunks)
        assert call.text == "hi there"

    run(check())


@pytest.mark.parametrize("included", [True, False, None])
def test_usage_comes_once_after_the_finish_chunk_when_asked_for(included: bool | None) -> None:
    """E5: field case N54: also after an abort, with the tokens delivered and the cached ones."""

    def script(submit: Submit) -> list[Event]:
        end = aborted(submit, Reason.CLIENT_ABORT, Stage.DECODE, prompt_tokens=9, completion_tokens=4, cached_tokens=5)
        return [tokens(submit, "abcd"), end]

    async def check() -> None:
        options: dict[str, Any] = {} if included is None else {"stream_options": {"include_usage": included}}
        async with edge(script) as at:
            call = await at.client.chat(stream=True, **options).whole()
        finish = call.events[-3] if included else call.events[-2]
        assert finish["choices"][0]["finish_reason"] == "abort"
        with_usage = [event for event in call.events[:-1] if "usage" in event]
        if not included:
            assert with_usage == []
            return
        assert with_usage == [call.events[-2]]
        assert call.events[-2]["choices"] == []
        usage = call.events[-2]["usage"]
        assert usage["prompt_tokens"] == 9
        assert usage["completion_tokens"] == 4
        assert usage["prompt_tokens_details"] == {"cached_tokens": 5}

    run(check())


def test_the_first_token_is_sent_at_once_and_later_ones_are_gathered() -> None:
    """Design: first token at once, then at most one piece per `flush_s`."""

    async def check() -> None:
        async with edge(flush_s=0.2) as at:
            call = at.client.chat(stream=True)
            await at.worker.submitted.wait()
            submit = at.worker.submits[0]
            at.worker.push(tokens(submit, "a"))
            first = await call.piece()
            assert b'"content":"a"' in first
            for index, letter in enumerate("bcdef", start=1):
                at.worker.push(tokens(submit, letter, index))
                await asyncio.sleep(0)
            assert b'"content":"bcdef"' in await call.piece()
            at.worker.push(stopped(submit, 6))
            await call.whole()
            assert call.text == "abcdef"

    run(check())


def test_an_end_is_not_held_back_by_gathering() -> None:
    async def check() -> None:
        async with edge(flush_s=30.0) as at:
            call = at.client.chat(stream=True)
            await at.worker.submitted.wait()
            submit = at.worker.submits[0]
            at.worker.push(tokens(submit, "a"))
            await call.piece()
            at.worker.push(tokens(submit, "b", 1), stopped(submit, 2))
            await call.whole()
            assert call.text == "ab"

    run(check())


def test_an_error_before_the_first_token_is_a_real_status() -> None:
    """E3: W22: field case N59, session case M05."""

    async def check() -> None:
        async with edge(lambda submit: [aborted(submit, Reason.QUEUE_FULL)]) as at:
            call = await at.client.chat(stream=True).whole()
        assert call.status == 429
        assert call.headers["retry-after"] == "1"
        assert call.headers["content-type"] == "application/json"
        assert call.json()["error"]["reason"] == "queue_full"

    run(check())


def test_an_error_after_the_first_token_is_one_event_then_the_end_marker() -> None:
    """E3, E4: field case N59, session case T05: five tokens, one error event with the partial text, [DONE]."""

    async def check() -> None:
        async with edge() as at:
            call = at.client.chat(stream=True)
            await at.worker.submitted.wait()
            submit = at.worker.submits[0]
            at.worker.push(tokens(submit, "12345"))
            await call.until("12345")
            at.worker.push(aborted(submit, Reason.RUNNING_TIMEOUT, Stage.DECODE, completion_tokens=5))
            await call.whole()
        assert call.status == 200
        assert call.text == "12345"
        assert b"event: error\ndata: " in call.body
        error, done = call.events[-2:]
        assert done == "[DONE]"
        assert error["error"]["reason"] == "running_timeout"
        assert error["error"]["stage"] == "decode"
        assert error["error"]["retryable"] is False
        assert error["error"]["partial"] == {"text": "12345", "completion_tokens": 5}
        assert sum("error" in event for event in call.events[:-1]) == 1

    run(check())


def test_a_stream_without_tokens_is_kept_alive_by_comments() -> None:
    """E3: the 200 goes out early; what fails later is an error event."""

    async def check() -> None:
        async with edge(keepalive_after_s=0.02) as at:
            call = at.client.chat(stream=True)
            await call.until(": keep-alive\n\n: keep-alive\n\n")
            assert call.status == 200
            submit = at.worker.submits[0]
            at.worker.push(aborted(submit, Reason.WAITING_TIMEOUT))
            await call.whole()
        assert [event["error"]["reason"] for event in call.events[:-1]] == ["waiting_timeout"]
        assert call.events[-1] == "[DONE]"

    run(check())


def test_a_parked_stream_is_kept_alive_too() -> None:
    """E3, C1: while no worker is ready the request waits here, and its stream says so."""

    async def check() -> None:
        async with edge(says("late"), keepalive_after_s=0.02) as at:
            at.pool.ready = False
            call = at.client.chat(stream=True)
            await call.until(": keep-alive")
            at.pool.ready = True
            at.ingress.router._members_at = None
            await call.whole()
        assert call.text == "late"

    run(check())


def test_characters_split_over_tokens_come_whole() -> None:
    """I2: field case N56: no chunk holds half a character, and the deltas add up."""
    text = "a🙂日🇫🇷é́🙂🙂"

    async def check() -> None:
        async with edge(flush_s=0.0) as at:
            call = at.client.chat(stream=True)
            await at.worker.submitted.wait()
            submit = at.worker.submits[0]
            for index, byte in enumerate(text.encode()):
                at.worker.push(tokens(submit, bytes([byte]), index))
                await asyncio.sleep(0.001)
            at.worker.push(stopped(submit, len(text.encode())))
            await call.whole()
        assert "�" not in call.body.decode()
        assert call.text == text
        assert len(call.events) > 6

    run(check())


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_string_over_several_tokens_is_never_shown(stream: bool) -> None:
    """I2: field case N55: text before it is complete, nothing of it is sent; streamed = unary."""

    def script(submit: Submit) -> list[Event]:
        pieces, index, events = ["alpha", " be", "ta", " gam", "ma"], 0, []
        for piece in pieces:
            events.append(tokens(submit, piece, index))
            index += len(piece)
        return [*events, stopped(submit, index, matched="beta gamma")]

    async def check() -> None:
        async with edge(script) as at:
            call = await at.client.chat(stream=stream, stop=["beta gamma"]).whole()
        text = call.text if stream else call.json()["choices"][0]["message"]["content"]
        assert text == "alpha "
        assert b"beta" not in call.body

    run(check())


def test_zero_tokens_are_an_answer() -> None:
    """I1: field case N62: max_tokens 0 is 200, `length`, no token; never a silent empty 200."""

    async def check() -> None:
        async with edge(lambda submit: [replace(stopped(submit, 0), outcome=Outcome.LENGTH)]) as at:
            call = await at.client.chat(stream=True, max_tokens=0).whole()
            unary = await at.client.chat(max_tokens=0).whole()
        assert call.status == 200
        assert call.events[-2]["choices"][0]["finish_reason"] == "length"
        assert call.text == ""
        assert unary.json()["choices"][0]["finish_reason"] == "length"
        assert at.worker.submits[0].sampling.max_tokens == 0

    run(check())
