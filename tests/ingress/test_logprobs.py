"""Log probabilities over HTTP: the shapes of the OpenAI API, whole and streamed."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from actors.ingress.logprobs import LEAST, chat_logprobs, completion_logprobs
from actors.runner.toy import toy_logprobs
from tests.ingress.asgi import Call, run
from tests.ingress.local import cluster

GREEDY: dict[str, Any] = {"max_tokens": 12, "temperature": 0}


def chunks(call: Call, kind: str) -> list[Any]:
    """The `kind` of the choices' logprobs over a stream."""
    told = [event["choices"][0]["logprobs"] for event in call.events[:-1] if event["choices"]]
    return [item for logprobs in told if logprobs for item in logprobs[kind]]


def test_a_chat_tells_each_token_with_its_likeliest(tmp_path: Path) -> None:
    """I2: a stream's entries are those of the whole answer."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            asked = {**GREEDY, "logprobs": True, "top_logprobs": 2}
            whole = (await at.client.chat("hello", **asked).whole()).json()
            stream = await at.client.chat("hello", stream=True, **asked).whole()
            plain = (await at.client.chat("hello", **GREEDY).whole()).json()
        entries = whole["choices"][0]["logprobs"]["content"]
        text = whole["choices"][0]["message"]["content"]
        assert "".join(entry["token"] for entry in entries) == text == stream.text
        assert chunks(stream, "content") == entries
        first = entries[0]
        own, top = toy_logprobs(ord(text[0]), 2)
        assert (first["bytes"], first["logprob"]) == ([ord(text[0])], own)
        assert [one["logprob"] for one in first["top_logprobs"]] == [value for _, value in top]
        assert plain["choices"][0]["logprobs"] is None

    run(check())


def test_tokens_whose_text_is_held_back_are_told_when_they_are_made(tmp_path: Path) -> None:
    """What a stop string cuts off was made all the same: every completion token has its entry."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            plain = (await at.client.chat("hello", **GREEDY).whole()).json()["choices"][0]["message"]["content"]
            asked = {**GREEDY, "logprobs": True, "stop": plain[5:7], "stream": True}
            stream = await at.client.chat("hello", stream_options={"include_usage": True}, **asked).whole()
        assert stream.text == plain[:5]
        told = "".join(entry["token"] for entry in chunks(stream, "content"))
        assert told == plain[:7]
        assert stream.events[-2]["usage"]["completion_tokens"] == 7

    run(check())


def test_a_completion_tells_tokens_and_where_they_are(tmp_path: Path) -> None:
    async def check() -> None:
        async with cluster(tmp_path) as at:
            asked = {"prompt": "once", "logprobs": 1, "n": 2, **GREEDY}
            whole = (await at.client.post("/v1/completions", asked)).json()
            stream = await at.client.post("/v1/completions", {**asked, "n": 1, "stream": True})
        for choice in whole["choices"]:
            told = choice["logprobs"]
            assert "".join(told["tokens"]) == choice["text"]
            assert told["text_offset"] == list(range(12))
            assert told["token_logprobs"] == [-math.log(2)] * 12
            assert [list(top) for top in told["top_logprobs"]] == [[token] for token in told["tokens"]]
        for kind in ("tokens", "token_logprobs", "text_offset"):
            assert chunks(stream, kind) == whole["choices"][0]["logprobs"][kind]

    run(check())


def test_what_a_grammar_forbids_is_told_as_a_number(tmp_path: Path) -> None:
    """I1: field case N57: more alternatives than the grammar allows: JSON without NaN or Infinity."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            asked = {**GREEDY, "guided_choice": ["a", "b"]}
            top = {"logprobs": True, "top_logprobs": 10}
            whole = await at.client.chat("hello", **asked, **top).whole()
            stream = await at.client.chat("hello", stream=True, **asked, **top).whole()
            plain = await at.client.post("/v1/completions", {"prompt": "hello", "logprobs": 10, **asked})
        for call in (whole, stream, plain):
            assert call.status == 200, call.body
            for word in (b"NaN", b"Infinity", b"null,null"):
                assert word not in call.body
        entry = whole.json()["choices"][0]["logprobs"]["content"][0]
        assert len(entry["top_logprobs"]) == 10
        assert all(math.isfinite(one["logprob"]) for one in entry["top_logprobs"])

    run(check())


def test_a_turns_logprobs_go_with_its_tokens_and_a_replay_has_none(tmp_path: Path) -> None:
    """T2: what is stored is the text."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            asked = {**GREEDY, "logprobs": True, "rid": "turn", "session": {"id": "s", "create": True}}
            first = (await at.client.chat("hello", **asked).whole()).json()
            again = (await at.client.chat("hello", **asked).whole()).json()
        assert len(first["choices"][0]["logprobs"]["content"]) == 12
        assert again["replayed"] is True
        assert again["choices"][0]["message"] == first["choices"][0]["message"]
        assert again["choices"][0]["logprobs"] is None

    run(check())


def test_what_cannot_come_has_a_number_and_half_a_character_a_text() -> None:
    """JSON knows no infinity; a token may be a part of a character."""
    told = [(0, (-math.inf, ((1, -0.5), (2, -math.inf))))]
    spelled = [b"\xc3", b"a", b"<end>"].__getitem__
    (entry,) = chat_logprobs(told, spelled)["content"]
    assert (entry["token"], entry["bytes"], entry["logprob"]) == ("\ufffd", [0xC3], LEAST)
    assert [one["token"] for one in entry["top_logprobs"]] == ["a", "<end>"]
    assert completion_logprobs(told, spelled, 4)["top_logprobs"] == [{"a": -0.5, "<end>": LEAST}]
    assert completion_logprobs(told, spelled, 4)["text_offset"] == [4]


def test_a_long_completion_is_told_in_no_time() -> None:
    """I1: the event loop does it."""
    began = time.process_time()
    told = completion_logprobs([(97, (-1.0, ()))] * 60_000, lambda token: bytes([token]), 3)
    assert time.process_time() - began < 3.0
    assert told["text_offset"] == list(range(3, 60_003))
