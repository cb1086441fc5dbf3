"""SGLang's clients, against a real HTTP server. Their packages bring a whole engine along, so they are not installed:
these are the calls that they make, in their order, over `httpx`: of `bench_serving`, of the front end's
`RuntimeEndpoint`, of the gateway, of trainers that use a server for rollouts, and of SGLang's own session test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.clients.place import Place, expected
from tests.ingress.keyed import OPS


@pytest.fixture
def http(place: Place) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=place.url, headers={"authorization": f"Bearer {OPS}"}, timeout=30.0) as client:
        yield client


def lines_of(http: httpx.Client, body: dict[str, Any]) -> list[Any]:
    """The events of a stream, as these clients take it apart: line by line, by its first letters."""
    found = []
    with http.stream("POST", "/generate", json=body) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if not line:
                continue
            assert line.startswith("data:")
            if line == "data: [DONE]":
                break
            found.append(json.loads(line[5:].strip()))
    return found


def test_bench_serving(http: httpx.Client) -> None:
    """Model, flush, streams with cumulative text whose lengths it counts, and the server's state at the end."""
    assert http.get("/v1/models").json()["data"][0]["id"] == "toy"
    assert http.post("/flush_cache").status_code == 200
    for prompt in ("hello", list(b"hello")):
        body = {
            ("text" if isinstance(prompt, str) else "input_ids"): prompt,
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 32, "ignore_eos": True},
            "stream": True,
            "stream_options": {"include_usage": True},
            "lora_path": None,
            "return_logprob": False,
            "logprob_start_len": -1,
        }
        text, counted, new = "", 0, []
        for data in lines_of(http, body):
            if data["text"]:
                text = data["text"]
                made = data["meta_info"]["completion_tokens"]
                new.append(made - counted)
                counted = made
        assert (text, counted) == (expected("hello", 32), 32)
        assert all(more >= 0 for more in new)
    info = http.get("/get_server_info").json()
    assert info["internal_states"][0].get("avg_spec_accept_length", None) is None
    bad = http.post("/generate", json={"text": "x", "sampling_params": {"temperature": -1}})
    assert (bad.status_code, "temperature" in bad.json()["error"]["message"]) == (400, True)


def test_the_front_ends_endpoint(http: httpx.Client) -> None:
    """A program that goes on with its own text; every setting of its is sent, most of them empty."""
    assert http.get("/get_model_info").json()["model_path"] == "toy"
    settings = {
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "max_new_tokens": 12,
        "min_new_tokens": 0,
        "n": 1,
        "stop": [],
        "stop_token_ids": [],
        "stop_regex": [],
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "ignore_eos": False,
        "regex": None,
        "json_schema": None,
    }
    state = "Q: why? A:"
    for _ in range(3):
        answer = http.post("/generate", json={"text": state, "sampling_params": settings}).json()
        assert answer["text"] == expected(state, 12)
        position, streamed = 0, ""
        for data in lines_of(http, {"text": state, "sampling_params": settings, "stream": True}):
            piece = data["text"][position:]
            position += len(piece)
            streamed += piece
        assert streamed == answer["text"]
        assert answer["meta_info"]["finish_reason"]["type"] in ("length", "stop")
        state += answer["text"] + " and?"
    batch = http.post("/generate", json={"text": [state, "x"], "sampling_params": settings}).json()
    assert [one["text"] for one in batch] == [expected(state, 12), expected("x", 12)]
    prefill = http.post("/generate", json={"text": state, "sampling_params": {"max_new_tokens": 0}}).json()
    assert (prefill["text"], prefill["meta_info"]["finish_reason"]) == ("", {"type": "length", "length": 0})


def test_the_gateway(http: httpx.Client, place: Place) -> None:
    """Probes without a key, discovery, forwarding with its own headers, and an abort by name."""
    assert httpx.get(f"{place.url}/health").status_code == 200
    assert httpx.get(f"{place.url}/server_info").status_code == 401
    assert http.get("/health_generate").status_code == 200
    info = http.get("/server_info").json()
    assert (info["served_model_name"], info["dp_size"]) == ("toy", 2)
    headers = {"x-request-id": "gateway-1", "x-smg-routing-key": "k"}
    short, long = place.name("short"), place.name("long")
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 4, "temperature": 0}, "rid": short, "model": "toy"}
    answer = http.post("/generate", json=body, headers=headers)
    assert answer.headers["x-request-id"] == "gateway-1"
    assert answer.json()["meta_info"]["id"] == short
    body = {"text": "x", "rid": long, "stream": True, "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
    with http.stream("POST", "/generate", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert http.post("/abort_request", json={"rid": long, "abort_all": False}).status_code == 200
        last = [json.loads(line[5:]) for line in lines if line and line != "data: [DONE]"][-1]
    assert last["meta_info"]["finish_reason"]["type"] == "abort"


def test_a_trainers_rollouts(http: httpx.Client) -> None:
    """Ids in, ids and log probabilities out; generation stands still while weights would change, and goes on."""
    body = {
        "input_ids": list(b"hello"),
        "sampling_params": {"max_new_tokens": 8, "temperature": 1.0, "top_k": -1, "skip_special_tokens": False},
        "return_logprob": True,
    }
    answer = http.post("/generate", json=body).json()
    scored = answer["meta_info"]["output_token_logprobs"]
    assert [entry[1] for entry in scored] == answer["output_ids"]
    assert all(entry[0] <= 0 for entry in scored)
    assert answer["meta_info"]["weight_version"]
    for mode in ("retract", "in_place", "abort"):
        paused = http.post("/pause_generation", json={"mode": mode}).json()
        assert (paused["status"], paused["paused"]) == ("ok", True)
        assert http.post("/flush_cache").text.startswith("Cache flushed.")
        assert http.post("/continue_generation", json={}).json()["status"] == "ok"
        assert http.post("/generate", json=body).status_code == 200
    assert http.post("/abort_request", json={"rid": "", "abort_all": True}).status_code == 200


def test_sglangs_session_test(http: httpx.Client) -> None:
    """A text in pieces, each behind the one before with its last token cut, then a branch from the middle."""
    session = http.post("/open_session", json={"capacity_of_str_len": 1000}).json()
    assert isinstance(session, str)
    context, last, first = "", None, None
    for number, piece in enumerate(["Let me tell you", " something about", " France.", " The capital is"]):
        params = {"id": session, "rid": last, "offset": -1, "replace": number > 0}
        settings = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
        body = {"text": piece, "session_params": params, "sampling_params": settings}
        answer = http.post("/generate", json=body).json()
        context = (context[:-1] if last else "") + piece
        assert answer["text"] == expected(context, 6)
        context += answer["text"]
        last = answer["meta_info"]["id"]
        first = first or (last, context)
    branch = {"id": session, "rid": first[0] if first else None, "offset": 0}
    answer = http.post("/generate", json={"text": "!", "session_params": branch, "sampling_params": settings}).json()
    assert answer["text"] == expected((first or ("", ""))[1] + "!", 6)
    assert http.post("/close_session", json={"session_id": session}).status_code == 200
    gone = http.post("/generate", json={"text": "!", "session_params": branch, "sampling_params": settings})
    assert (gone.status_code, gone.json()["error"]["reason"]) == (404, "session_unknown")


def test_the_front_ends_select(http: httpx.Client) -> None:
    """`RuntimeEndpoint.select`: the prefix, then each choice behind it, scored from two tokens before; then the choices
    alone."""
    prefix, choices = "The answer is", [" yes", " no", " maybe"]
    asked: dict[str, Any] = {"text": prefix, "sampling_params": {"max_new_tokens": 0}}
    begin = max(http.post("/generate", json=asked).json()["meta_info"]["prompt_tokens"] - 2, 0)
    asked = {
        "text": [prefix + choice for choice in choices],
        "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True,
        "return_text_in_logprobs": True,
        "logprob_start_len": begin,
    }
    told = [one["meta_info"] for one in http.post("/generate", json=asked).json()]
    scores = [meta["input_token_logprobs"] for meta in told]
    assert ["".join(text for _, _, text in one) for one in scores] == [prefix[begin:] + choice for choice in choices]
    values = [[score[0] for score in one if score[0]] for one in scores]
    assert all(sum(each) / len(each) < 0 for each in values)
    assert [meta["output_token_logprobs"] for meta in told] == [[], [], []]
    alone = {"input_ids": [[token for _, token, _ in one] for one in scores], "sampling_params": {"max_new_tokens": 0}}
    bare = http.post("/generate", json={**alone, "return_logprob": True}).json()
    assert [len(one["meta_info"]["input_token_logprobs"]) for one in bare] == [len(one) for one in scores]
