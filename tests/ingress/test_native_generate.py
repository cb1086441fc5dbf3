"""POST /generate as SGLang's clients know it: shapes, ends, log probabilities, streams."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.ingress.native_answers import Scores
from actors.messages import Event, Outcome, Reason, Stage, Submit
from actors.ports import Member
from actors.runner.toy import toy_continuation, toy_logprobs
from tests.ingress.asgi import Call, Client, eventually, run
from tests.ingress.harness import edge
from tests.ingress.local import cluster
from tests.ingress.scripted import aborted, says, stopped, tokens

GREEDY = {"temperature": 0, "max_new_tokens": 12}


def generate(client: Client, text: Any = "hello", **fields: Any) -> Call:
    return client.start("POST", "/generate", {"text": text, "sampling_params": GREEDY, **fields})


def expected(prompt: str, count: int = 12) -> str:
    return bytes(toy_continuation(list(prompt.encode()), count)).decode()


def test_one_reply_is_one_object() -> None:
    """E5: every field that SGLang's clients read."""

    async def check() -> None:
        async with edge(lambda s: [tokens(s, "hi!"), stopped(s, 3, cached_tokens=2)]) as at:
            body = (await generate(at.client, rid="r").whole()).json()
        assert (body["text"], body["output_ids"]) == ("hi!", list(b"hi!"))
        meta = body["meta_info"]
        assert meta.pop("e2e_latency") > 0
        assert meta == {
            "id": "r",
            "finish_reason": {"type": "stop", "matched": ord("!")},
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "cached_tokens": 2,
            "weight_version": "default",
        }

    run(check())


def test_the_weights_that_made_a_reply_are_named() -> None:
    """T5: where workers of two versions run, each reply tells its own."""

    async def members() -> list[Member]:
        return [Member("w1", "READY", 0, "v7")]

    async def check() -> None:
        async with edge(says("x")) as at:
            at.pool.members = members  # type: ignore[method-assign]
            body = (await generate(at.client).whole()).json()
            assert body["meta_info"]["weight_version"] == "v7"
            assert (await at.client.get("/model_info")).json()["weight_version"] == "v7"

    run(check())


def test_ends_are_told_as_sglang_does() -> None:
    """E1, E3: length, a stop string, an abort with its partial text: all are answers."""

    def script(submit: Submit) -> list[Event]:
        said = tokens(submit, "ab END")
        if submit.rid == "length":
            return [said, replace(stopped(submit, 6), outcome=Outcome.LENGTH)]
        if submit.rid == "stop":
            return [said, stopped(submit, 6, matched="END")]
        return [said, aborted(submit, Reason.CLIENT_ABORT, Stage.DECODE, message="aborted", completion_tokens=6)]

    async def check() -> None:
        async with edge(script) as at:
            told = {}
            for rid in ("length", "stop", "abort"):
                settings = {**GREEDY, "stop": ["END"]}
                call = await generate(at.client, rid=rid, sampling_params=settings).whole()
                assert call.status == 200
                told[rid] = (call.json()["text"], call.json()["meta_info"]["finish_reason"])
        assert told["length"] == ("ab END", {"type": "length", "length": 6})
        assert told["stop"] == ("ab ", {"type": "stop", "matched": "END"})
        assert told["abort"][1] == {"type": "abort", "message": "aborted", "status_code": None, "err_type": None}

    run(check())


def test_a_streams_texts_are_cumulative() -> None:
    """I2: each event repeats all so far, the last is the whole answer, then the end marker."""

    async def check() -> None:
        async with edge() as at:
            call = generate(at.client, stream=True)
            await at.worker.submitted.wait()
            submit = at.worker.submits[0]
            for index, piece in enumerate("abc"):
                at.worker.push(tokens(submit, piece, index))
                await call.until(f'"text":"{"abc"[: index + 1]}"')
            at.worker.push(stopped(submit, 3))
            await call.whole()
        assert call.events[-1] == "[DONE]"
        events = call.events[:-1]
        assert [event["text"] for event in events] == ["a", "ab", "abc", "abc"]
        assert [event["output_ids"] for event in events][-1] == list(b"abc")
        assert [event["meta_info"]["completion_tokens"] for event in events] == [1, 2, 3, 3]
        assert [event["meta_info"]["finish_reason"] for event in events][:3] == [None] * 3
        assert all("index" not in event for event in events)
        assert events[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": ord("c")}

    run(check())


def test_a_stream_may_tell_only_what_is_new() -> None:
    """I2: as SGLang's own switch has it; the pieces add up."""

    async def check() -> None:
        async with edge(incremental_streaming_output=True) as at:
            call = generate(at.client, stream=True)
            await at.worker.submitted.wait()
            submit = at.worker.submits[0]
            for index, piece in enumerate("abc"):
                at.worker.push(tokens(submit, piece, index))
                await call.until(f'"text":"{piece}"')
            at.worker.push(tokens(submit, "de", 3), stopped(submit, 5))
            await call.whole()
        events = call.events[:-1]
        assert [event["text"] for event in events] == ["a", "b", "c", "de"]
        assert [event["output_ids"] for event in events] == [[97], [98], [99], [100, 101]]
        assert events[-1]["meta_info"]["completion_tokens"] == 5

    run(check())


@pytest.mark.parametrize("incremental", [True, False])
def test_stream_and_unary_say_the_same(tmp_path: Path, incremental: bool) -> None:
    """I2, I3: text, ids, usage and end, over a real worker; and so does a chat's completion of the same prompt."""

    async def check() -> None:
        async with cluster(tmp_path, incremental_streaming_output=incremental) as at:
            whole = (await generate(at.client).whole()).json()
            stream = await generate(at.client, stream=True).whole()
            other = {"prompt": "hello", "max_tokens": 12, "temperature": 0}
            completion = (await at.client.post("/v1/completions", other)).json()
        events = stream.events[:-1]
        if incremental:
            assert "".join(event["text"] for event in events) == whole["text"]
            assert [token for event in events for token in event["output_ids"]] == whole["output_ids"]
        else:
            assert (events[-1]["text"], events[-1]["output_ids"]) == (whole["text"], whole["output_ids"])
        assert whole["text"] == completion["choices"][0]["text"] == expected("hello")
        for name in ("finish_reason", "prompt_tokens", "completion_tokens"):
            assert events[-1]["meta_info"][name] == whole["meta_info"][name]
        assert completion["usage"]["prompt_tokens"] == whole["meta_info"]["prompt_tokens"]

    run(check())


def test_ids_in_and_the_default_length(tmp_path: Path) -> None:
    """128 tokens, as SGLang has it; null is as many as fit."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            body = {"input_ids": list(b"hello"), "sampling_params": {"temperature": 0, "ignore_eos": True}}
            call = await at.client.post("/generate", body)
            assert call.json()["text"] == expected("hello", 128)
        async with edge(says("x")) as at:
            await at.client.post("/generate", {"text": "x"})
            await at.client.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": None}})
            assert [submit.sampling.max_tokens for submit in at.worker.submits] == [128, None]

    run(check())


def test_settings_reach_the_worker_under_our_names() -> None:
    async def check() -> None:
        async with edge(says("x")) as at:
            settings = {
                "max_new_tokens": 7,
                "min_new_tokens": 2,
                "sampling_seed": 5,
                "temperature": 0.5,
                "top_p": 0.9,
                "top_k": 3,
                "min_p": 0.1,
                "frequency_penalty": 0.2,
                "presence_penalty": 0.3,
                "repetition_penalty": 1.1,
                "logit_bias": {"5": 2},
                "stop": "s",
                "stop_token_ids": [9],
                "ignore_eos": True,
            }
            await generate(at.client, sampling_params=settings, priority=4, extra_key="k").whole()
        submit = at.worker.submits[0]
        sampling = submit.sampling
        assert (sampling.max_tokens, sampling.min_tokens, sampling.seed) == (7, 2, 5)
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 3, 0.1)
        penalties = (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty)
        assert penalties == (0.2, 0.3, 1.1)
        assert (sampling.logit_bias, sampling.stop) == (((5, 2.0),), ("s",))
        assert (sampling.stop_token_ids, sampling.ignore_eos) == ((9,), True)
        assert (submit.priority, submit.cache_salt) == (4, "k")

    run(check())


def test_log_probabilities_come_as_lists(tmp_path: Path) -> None:
    """[log probability, id, text or null] for each token; streamed and whole alike."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            asked = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": -1}
            whole = (await generate(at.client, **asked, return_text_in_logprobs=True).whole()).json()
            bare = (await generate(at.client, **asked).whole()).json()
            stream = (await generate(at.client, **asked, stream=True).whole()).events[-2]
        meta = whole["meta_info"]
        text = whole["text"]
        assert "".join(entry[2] for entry in meta["output_token_logprobs"]) == text
        own, top = toy_logprobs(ord(text[0]), 2)
        assert meta["output_token_logprobs"][0] == [own, ord(text[0]), text[0]]
        assert [entry[:2] for entry in meta["output_top_logprobs"][0]] == [[value, token] for token, value in top]
        assert [entry[2] for entry in bare["meta_info"]["output_token_logprobs"]] == [None] * 12
        assert stream["meta_info"]["output_token_logprobs"] == bare["meta_info"]["output_token_logprobs"]

    run(check())


def test_an_error_before_the_first_token_is_a_real_status() -> None:
    """E3, E4: with the one error body, which has what SGLang's clients read, too."""

    async def check() -> None:
        async with edge(lambda submit: [aborted(submit, Reason.QUEUE_FULL)]) as at:
            for stream in (True, False):
                call = await generate(at.client, stream=stream).whole()
                assert (call.status, call.headers["retry-after"]) == (429, "1")
                assert call.json()["error"]["reason"] == "queue_full"
                assert call.json()["error"]["message"]

    run(check())


@pytest.mark.parametrize("incremental", [False, True])
def test_an_error_after_the_first_token_tells_what_was_made(incremental: bool) -> None:
    """E3, E4: one error event, in which SGLang's clients find the text and the reason; then the end marker."""

    async def check() -> None:
        async with edge(incremental_streaming_output=incremental) as at:
            call = generate(at.client, stream=True, rid="r")
            await at.worker.submitted.wait()
            submit = at.worker.submits[0]
            at.worker.push(tokens(submit, "123"))
            await call.until("123")
            end = aborted(submit, Reason.RUNNING_TIMEOUT, Stage.DECODE, completion_tokens=4)
            at.worker.push(tokens(submit, "4", 3), end)
            await call.whole()
        error, done = call.events[-2:]
        assert done == "[DONE]"
        assert error["error"]["reason"] == "running_timeout"
        assert error["error"]["partial"] == {"text": "1234", "completion_tokens": 4}
        text = "4" if incremental else "1234"
        assert (error["text"], error["output_ids"]) == (text, list(text.encode()))
        reason = error["meta_info"]["finish_reason"]
        assert (reason["type"], reason["status_code"], reason["err_type"]) == ("abort", 503, "running_timeout")
        assert sum("error" in event for event in call.events[:-1]) == 1

    run(check())


def test_a_stop_string_may_stay_in_the_text() -> None:
    """`no_stop_trim`, over pieces and as a whole; without it the stop string is never shown (I2)."""

    def script(submit: Submit) -> list[Event]:
        return [tokens(submit, "ab E"), tokens(submit, "ND", 4), stopped(submit, 6, matched="END")]

    async def check() -> None:
        async with edge(script) as at:
            for kept in (True, False):
                settings = {**GREEDY, "stop": ["END"], "no_stop_trim": kept}
                text = "ab END" if kept else "ab "
                assert (await generate(at.client, sampling_params=settings).whole()).json()["text"] == text
                stream = await generate(at.client, sampling_params=settings, stream=True).whole()
                assert stream.events[-2]["text"] == text
                assert kept or b'"ab E' not in stream.body

    run(check())


def test_a_disconnect_aborts_every_reply() -> None:
    """A1, A2: a batch's parts end with the connection."""

    async def check() -> None:
        async with edge() as at:
            call = generate(at.client, ["a", "b", "c"], rid="job", stream=True)
            await eventually(lambda: len(at.worker.submits) == 3)
            call.disconnect()
            await call.whole()
            told = {key for abort in at.worker.aborts for key in abort.keys}
            assert told == {submit.key for submit in at.worker.submits}

    run(check())


def test_a_request_sent_again_is_answered_once(tmp_path: Path) -> None:
    """T2: the same rid and body give the stored answer; another body is refused."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            first = (await generate(at.client, rid="r").whole()).json()
            again = (await generate(at.client, rid="r", stream=True).whole()).events[-2]
            assert again["text"] == first["text"]
            assert again["meta_info"]["replayed"]
            other = await generate(at.client, "bye", rid="r").whole()
            assert other.status == 422

    run(check())


def test_log_probabilities_that_a_stream_repeats_are_written_once() -> None:
    """I1: each event tells all of them again, and costs the event loop no more for it."""
    spelled: list[int] = []

    def token_bytes(token: int) -> bytes:
        spelled.append(token)
        return bytes([token])

    scores, told = Scores(token_bytes), [(97, (-1.0, ((97, -1.0), (98, -2.0))))] * 50
    for count in range(1, 51):
        written = orjson.loads(orjson.dumps(scores.of(told[:count])))
        assert written["output_token_logprobs"] == [[-1.0, 97, "a"]] * count
        assert written["output_top_logprobs"] == [[[-1.0, 97, "a"], [-2.0, 98, "b"]]] * count
    assert len(spelled) == 50 * 3
