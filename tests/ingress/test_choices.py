"""Several replies to one request: shapes, usage, ends, and what it is counted as."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from actors.messages import Event, Finished, Outcome, Reason, Stage, Submit
from tests.ingress.asgi import Call, eventually, run
from tests.ingress.harness import edge
from tests.ingress.local import cluster
from tests.ingress.scripted import aborted, says, stopped, tokens


def by_index(call: Call) -> dict[int, str]:
    """The text of each choice of a stream."""
    texts: dict[int, str] = {}
    for event in call.events[:-1]:
        for choice in event["choices"]:
            said = choice["delta"].get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + said
    return texts


def numbered(submit: Submit) -> list[Event]:
    """A worker that says the last character of the request's name."""
    return [tokens(submit, submit.rid[-1]), stopped(submit, 1)]


def test_each_choice_is_told_once_and_in_order() -> None:
    """E1, E5: usage counts the prompt once and every reply's tokens."""

    async def check() -> None:
        async with edge(numbered) as at:
            call = await at.client.chat("hello", rid="r", n=3).whole()
        body = call.json()
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
        assert [choice["message"]["content"] for choice in body["choices"]] == ["0", "1", "2"]
        prompt = len(at.worker.submits[0].input_ids)
        assert body["usage"]["prompt_tokens"] == prompt
        assert body["usage"]["completion_tokens"] == 3
        assert {submit.batch for submit in at.worker.submits} == {"r"}
        assert {submit.rid for submit in at.worker.submits} == {"r_0", "r_1", "r_2"}

    run(check())


def test_a_stream_of_several_choices_says_the_same_as_the_whole_answer() -> None:
    """I2: one role, one finish_reason each; [DONE] once, after all."""

    async def check() -> None:
        async with edge(numbered) as at:
            call = await at.client.chat(rid="r", n=3, stream=True, stream_options={"include_usage": True}).whole()
        assert call.events.count("[DONE]") == 1
        assert call.events[-1] == "[DONE]"
        chunks = [chunk for chunk in call.events[:-1] if chunk["choices"]]
        roles = [chunk["choices"][0]["index"] for chunk in chunks if "role" in chunk["choices"][0]["delta"]]
        ends = [chunk["choices"][0]["index"] for chunk in chunks if chunk["choices"][0]["finish_reason"]]
        assert sorted(roles) == sorted(ends) == [0, 1, 2]
        assert by_index(call) == {0: "0", 1: "1", 2: "2"}
        assert call.events[-2]["usage"]["completion_tokens"] == 3

    run(check())


def test_choices_come_as_they_are_made() -> None:
    """One that waits holds up no other."""

    async def check() -> None:
        async with edge() as at:
            call = at.client.chat(rid="r", n=2, stream=True)
            await eventually(lambda: len(at.worker.submits) == 2)
            late, early = at.worker.submits
            at.worker.push(tokens(early, "early"), stopped(early, 5))
            await call.until("early")
            assert not call.ended
            at.worker.push(tokens(late, "late"), stopped(late, 4))
            await call.whole()
        assert by_index(call) == {0: "late", 1: "early"}

    run(check())


def test_several_choices_are_one_request() -> None:
    """E6, field case N10: received once, ended once, as what its worst end was."""

    def script(submit: Submit) -> list[Event]:
        end = stopped(submit, 1)
        return [tokens(submit, "x"), replace(end, outcome=Outcome.LENGTH) if submit.rid == "r_1" else end]

    async def check() -> None:
        async with edge(script) as at:
            await at.client.chat(rid="r", n=3).whole()
            assert at.ends() == {("length", "", ""): 1}
            text = (await at.client.get("/metrics")).body.decode()
        assert "remora_requests_received_total 1.0" in text
        assert 'remora_tokens_total{kind="completion"} 3.0' in text
        assert "remora_requests_in_flight 0.0" in text

    run(check())


def test_a_client_that_leaves_takes_all_choices_along() -> None:
    """A1, A2: field case N10; and it is counted once."""

    async def check() -> None:
        async with edge() as at:
            call = at.client.chat(rid="r", n=3, stream=True)
            await eventually(lambda: len(at.worker.submits) == 3)
            at.worker.push(tokens(at.worker.submits[1], "some"))
            await call.until("some")
            call.disconnect()
            await call.whole()
            await eventually(lambda: at.ingress.metrics.open_requests == 0)
            gone = {key for abort in at.worker.aborts for key in abort.keys}
            assert gone == {submit.key for submit in at.worker.submits}
            assert at.ends() == {("abort", "client_disconnect", "decode"): 1}

    run(check())


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_is_refused_refuses_all_and_leaves_none_running(stream: bool) -> None:
    """E3, session case M07: a real status while nothing was told; the others are aborted."""

    def script(submit: Submit) -> list[Event]:
        return [aborted(submit, Reason.QUEUE_FULL)] if submit.rid == "r_1" else []

    async def check() -> None:
        async with edge(script) as at:
            call = await at.client.chat(rid="r", n=3, stream=stream).whole()
            assert call.status == 429
            assert call.headers["retry-after"]
            gone = {key for abort in at.worker.aborts for key in abort.keys}
            assert gone == {at.worker.submits[0].key, at.worker.submits[2].key}
            await eventually(lambda: at.ingress.metrics.open_requests == 0)
            assert sum(at.ends().values()) == 1

    run(check())


def test_a_failure_after_the_first_token_is_an_event_and_ends_the_stream() -> None:
    """E3."""

    async def check() -> None:
        async with edge() as at:
            call = at.client.chat(rid="r", n=2, stream=True)
            await eventually(lambda: len(at.worker.submits) == 2)
            first, second = at.worker.submits
            at.worker.push(tokens(first, "part"))
            await call.until("part")
            at.worker.push(aborted(second, Reason.RUNNING_TIMEOUT, Stage.DECODE))
            await call.whole()
            assert call.events[-2]["error"]["reason"] == "running_timeout"
            assert call.events[-1] == "[DONE]"
            assert {key for abort in at.worker.aborts for key in abort.keys} == {first.key}

    run(check())


def test_an_aborted_choice_is_an_answer_beside_the_others() -> None:
    """E3, A2: session case A18."""

    def script(submit: Submit) -> list[Event]:
        if submit.rid == "r_0":
            return [tokens(submit, "cut"), aborted(submit, Reason.CLIENT_ABORT, Stage.DECODE, completion_tokens=3)]
        return says("whole")(submit)

    async def check() -> None:
        async with edge(script) as at:
            call = await at.client.chat(rid="r", n=2).whole()
        told = [(choice["message"]["content"], choice["finish_reason"]) for choice in call.json()["choices"]]
        assert told == [("cut", "abort"), ("whole", "stop")]

    run(check())


def test_seeds_differ_between_choices_and_not_between_requests() -> None:
    """I3: the same request sent again draws the same tokens, and its choices are not all alike."""

    async def check() -> None:
        async with edge(says("x")) as at:
            await at.client.chat(n=3, seed=7).whole()
            await at.client.chat(n=2, rid="r").whole()
            await at.client.chat(n=2, rid="r").whole()
            await at.client.chat(n=1, seed=7).whole()
        seeds = [submit.sampling.seed for submit in at.worker.submits]
        assert seeds[:3] == [7, 8, 9]
        assert len(set(seeds[3:5])) == 2
        assert seeds[3:5] == seeds[5:7]
        assert seeds[7] == 7

    run(check())


def test_several_choices_of_one_seed(tmp_path: Path) -> None:
    """I3, E5, K3: field case N60: the same each time, each index another; the prompt's full pages are held once."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            prompt = "a prompt of some length, so that it fills pages: " * 8
            asked = {"n": 3, "seed": 5, "temperature": 1, "max_tokens": 20}
            streams = [await at.client.chat(prompt, stream=True, **asked).whole() for _ in range(2)]
            whole = (await at.client.chat(prompt, **asked).whole()).json()
            computed = at.shell().stats()["prefill_tokens"]
        texts = [choice["message"]["content"] for choice in whole["choices"]]
        assert len(set(texts)) == 3
        assert by_index(streams[0]) == by_index(streams[1]) == dict(enumerate(texts))
        assert whole["usage"]["completion_tokens"] == 60
        assert computed < 2 * whole["usage"]["prompt_tokens"], "of nine prompts"

    run(check())


def test_a_turn_has_one_reply() -> None:
    """S3: session case S23: several choices of a turn are refused, in every mode."""

    async def check() -> None:
        async with edge(says("x")) as at:
            call = await at.client.chat(n=2, session={"id": "s", "create": True}).whole()
        assert call.status == 400
        assert call.json()["error"]["param"] == "n"
        assert not at.worker.submits

    run(check())


def test_an_abort_of_the_name_ends_every_choice(tmp_path: Path) -> None:
    """A2, field case N10: each index once, usage as delivered, no page left; another request goes on."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.005) as at:
            other = at.client.chat("other", n=2, max_tokens=60, temperature=0, rid="q")
            call = at.client.chat("hello", n=4, max_tokens=2000, temperature=0, rid="p", stream=True)
            for index in range(4):
                await call.until(f'"index":{index},"delta":{{"content"')
            report = (await at.client.post("/v1/aborts", {"rid": "p"})).json()
            assert {hit["rid"] for hit in report["hit"]} == {f"p_{index}" for index in range(4)}
            assert report["unknown"] == []
            await call.whole()
            ends = [e["choices"][0] for e in call.events[:-1] if e["choices"] and e["choices"][0]["finish_reason"]]
            assert sorted(end["index"] for end in ends) == [0, 1, 2, 3]
            assert {end["finish_reason"] for end in ends} == {"abort"}
            await other.whole()
            assert [choice["finish_reason"] for choice in other.json()["choices"]] == ["length", "length"]
            await eventually(lambda: at.pages("w1")["request_owned"] == 0)

    run(check())


def test_a_named_request_of_several_choices_is_answered_again_from_the_store(tmp_path: Path) -> None:
    """T2."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            first = await at.client.chat("hello", n=2, max_tokens=6, rid="again").whole()
            second = await at.client.chat("hello", n=2, max_tokens=6, rid="again").whole()
            other = await at.client.chat("hello", n=2, max_tokens=7, rid="again").whole()
        said = [[choice["message"]["content"] for choice in call.json()["choices"]] for call in (first, second)]
        assert said[0] == said[1]
        assert second.json()["replayed"] is True
        assert other.status == 422

    run(check())


def test_lines_are_read_only_when_there_is_room(tmp_path: Path) -> None:
    """A8: while a send is blocked, replies wait in their lines, where they are counted, and the request ends."""

    async def check() -> None:
        async with edge(send_buffer_bytes=64 * 32, stall_timeout_s=30.0) as at:
            call = at.client.chat(n=2, stream=True)
            await eventually(lambda: len(at.worker.submits) == 2)
            first, second = at.worker.submits
            at.worker.push(tokens(first, "a"), tokens(second, "b"))
            await call.until('"b"')
            call.stuck = True
            for start in range(1, 200):
                at.worker.push(tokens(first, "a", start), tokens(second, "b", start))
                await asyncio.sleep(0.001)
            await asyncio.wait_for(call.whole(), 60)
            await eventually(lambda: at.ingress.metrics.open_requests == 0)
            assert at.ends() == {("abort", "client_disconnect", "decode"): 1}

    run(check())


def test_no_end_is_told_twice() -> None:
    """E1: a late second end of a choice changes nothing."""

    def script(submit: Submit) -> list[Event]:
        end: Finished = stopped(submit, 1)
        return [tokens(submit, "x"), end, end]

    async def check() -> None:
        async with edge(script) as at:
            call = await at.client.chat(n=2).whole()
            assert len(call.json()["choices"]) == 2
            assert at.ends() == {("stop", "", ""): 1}

    run(check())
