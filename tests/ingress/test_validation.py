"""Wrong values of known fields are 400 naming the field; unknown fields are ignored (rule I1)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.ingress.errors import ApiError
from actors.ingress.generation import GenerationRequest
from actors.ingress.openai_chat import read_chat
from actors.ingress.toy_text import toy_text
from actors.ingress.validate import parse_object
from actors.messages import OnBusy, SessionMode
from configs import RemoraConfig, TimeoutConfig
from tests.ingress.asgi import run
from tests.ingress.harness import edge
from tests.ingress.scripted import says

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def read(headers: dict[str, str] | None = None, config: RemoraConfig | None = None, **fields: Any) -> GenerationRequest:
    tree = {"messages": [USER], **fields}
    return read_chat(tree, headers or {}, text=toy_text(max_context=1000), config=config or RemoraConfig())


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(**fields)
    return caught.value


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("messages", {"messages": []}),
    ("messages", {"messages": None}),
    ("messages", {"messages": "hi"}),
    ("messages[0]", {"messages": ["hi"]}),
    ("messages[1].role", {"messages": [USER, {"role": "alien", "content": "x"}]}),
    ("messages[0].role", {"messages": [{"content": "x"}]}),
    ("messages[0].role", {"messages": [{"role": 3, "content": "x"}]}),
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": []}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": "a\x00b"}]}),
    ("messages[1].content", {"messages": [USER, {"role": "assistant", "content": None}]}),
    ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ("messages[0].content[0].text", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
    ("messages[1].tool_call_id", {"messages": [USER, {"role": "tool", "content": "x"}]}),
    ("messages[0].tool_calls[0].function", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}),
    ("max_tokens", {"max_tokens": -1}),
    ("max_tokens", {"max_tokens": 1.5}),
    ("max_tokens", {"max_tokens": "10"}),
    ("max_tokens", {"max_tokens": True}),
    ("max_tokens", {"max_tokens": 10**12}),
    ("max_completion_tokens", {"max_completion_tokens": -1}),
    ("max_tokens", {"max_tokens": -1, "max_completion_tokens": 5}),
    ("temperature", {"temperature": -1}),
    ("temperature", {"temperature": 2.1}),
    ("temperature", {"temperature": "hot"}),
    ("top_p", {"top_p": 1.1}),
    ("top_p", {"top_p": -0.1}),
    ("top_k", {"top_k": -2}),
    ("min_p", {"min_p": 2}),
    ("repetition_penalty", {"repetition_penalty": 0}),
    ("presence_penalty", {"presence_penalty": 3}),
    ("frequency_penalty", {"frequency_penalty": -3}),
    ("logit_bias", {"logit_bias": {"260": 5}}),
    ("logit_bias", {"logit_bias": {"abc": 1}}),
    ("logit_bias", {"logit_bias": {"-1": 1}}),
    ("logit_bias", {"logit_bias": {"0": 1e9}}),
    ("logit_bias", {"logit_bias": {"0": "x"}}),
    ("logit_bias", {"logit_bias": [1]}),
    ("stop_token_ids[0]", {"stop_token_ids": [260], "min_tokens": 5}),
    ("stop_token_ids[1]", {"stop_token_ids": [1, -1]}),
    ("stop_token_ids[0]", {"stop_token_ids": [2**63]}),
    ("seed", {"seed": 1.5}),
    ("stop", {"stop": ""}),
    ("stop[1]", {"stop": ["a", ""]}),
    ("stop", {"stop": ["a"] * 17}),
    ("stop", {"stop": 3}),
    ("n", {"n": 129}),
    ("n", {"n": 0}),
    ("stream", {"stream": "yes"}),
    ("stream_options", {"stream_options": []}),
    ("stream_options.include_usage", {"stream_options": {"include_usage": 1}}),
    ("model", {"model": 5}),
    ("user", {"user": "u" * 2**20}),
    ("user", {"user": 5}),
    ("priority", {"priority": "high"}),
    ("waiting_timeout_s", {"waiting_timeout_s": -1}),
    ("deadline_s", {"deadline_s": "soon"}),
    ("rid", {"rid": "r" * 10_000}),
    ("rid", {"rid": ""}),
    ("rid", {"rid": "a\nb"}),
    ("tools[0].function", {"tools": [{"type": "function"}]}),
    ("logprobs", {"logprobs": 1}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": -1}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("response_format.type", {"response_format": {"type": "yaml"}}),
    ("response_format", {"response_format": "json_object"}),
    ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
    ("response_format.json_schema.schema", {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}),
    (
        "response_format.json_schema.schema",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": [1]}}},
    ),
    (
        "response_format.json_schema.strict",
        {"response_format": {"type": "json_schema", "json_schema": {"strict": "yes", "schema": {}}}},
    ),
    ("guided_json", {"guided_json": "{"}),
    ("guided_json", {"guided_json": [1]}),
    ("guided_json", {"guided_json": {"title": "x" * 300_000}}),
    ("guided_regex", {"guided_regex": ""}),
    ("guided_regex", {"guided_regex": 5}),
    ("guided_choice", {"guided_choice": []}),
    ("guided_choice", {"guided_choice": "yes"}),
    ("guided_choice[1]", {"guided_choice": ["a", 5]}),
    ("guided_choice", {"guided_choice": ["a", ""]}),
    ("guided_grammar", {"guided_grammar": {}}),
    ("guided_regex", {"guided_regex": "a", "response_format": {"type": "json_object"}}),
    ("session", {"session": "abc"}),
    ("session.id", {"session": {}}),
    ("session.id", {"session": {"id": ""}}),
    ("session.id", {"session": {"id": "x" * 257}}),
    ("session.id", {"session": {"id": "é" * 129}}),
    ("session.id", {"session": {"id": "a\nb"}}),
    ("session.id", {"session": {"id": "a\x00"}}),
    ("session.id", {"session": {"id": "x" * 2**20}}),
    ("session.id", {"session": {"id": 7}}),
    ("session.mode", {"session": {"id": "s", "mode": "linear"}}),
    ("session.on_busy", {"session": {"id": "s", "on_busy": "wait"}}),
    ("session.offset", {"session": {"id": "s", "offset": 1.5}}),
    ("session.parent", {"session": {"id": "s", "parent": 5}}),
    ("session.create", {"session": {"id": "s", "create": "yes"}}),
]


@pytest.mark.parametrize(("param", "fields"), WRONG, ids=[f"{i}-{param}" for i, (param, _) in enumerate(WRONG)])
def test_a_wrong_value_is_400_naming_the_field(param: str, fields: dict[str, Any]) -> None:
    """I1, S13, N61, N62, N64, N67."""
    error = refused(**fields)
    assert error.status == 400
    assert error.param == param
    assert len(error.message) < 400


def test_the_model_must_be_the_served_one() -> None:
    error = refused(model="gpt-9")
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert len(refused(model="x" * 2**20).message) < 400


def test_absent_null_and_unknown_fields_are_as_if_they_were_not_there() -> None:
    """I1, N62, N67."""
    plain = read(seed=1)
    nulls = read(seed=1, max_tokens=None, temperature=None, stop=None, n=None, session=None, tools=None, user=None)
    assert plain.sampling == nulls.sampling
    assert plain.sampling.max_tokens is None
    assert plain.sampling.temperature == 1.0
    assert plain.session is None
    assert read(seed=1, foo={"bar": [1]}, metadata={}, store=True, tools=[]).sampling == plain.sampling
    assert read(stop=[]).sampling.stop == ()
    assert read(stop=["a", "b", "c", "d", "e"]).sampling.stop == ("a", "b", "c", "d", "e")
    assert read().sampling.seed != read().sampling.seed


def test_odd_but_legal_messages_are_taken() -> None:
    """N67: text parts, a tool call without content, a refusal, the assistant last, `developer`."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    odd = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts, "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "4", "tool_call_id": "c"},
        {"role": "assistant", "content": "four"},
    ]
    messages = read(messages=odd).prompts[0].messages
    assert messages[0] == {"role": "system", "content": "be brief"}
    assert messages[1] == {"role": "user", "content": "a\nb", "name": "ann"}
    assert messages[2]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert messages[2]["content"] == ""
    assert messages[3]["tool_call_id"] == "c"


@pytest.mark.parametrize(
    "session_id", ["日本語-🙂", "a b", "../../x", "%2e%2e%2f", "{rid}", "%s%n", "'; DROP", "x" * 256]
)
def test_any_printable_text_may_be_a_session_id(session_id: str) -> None:
    """S13, N33."""
    use = read(session={"id": session_id}).session
    assert use is not None
    assert use.session_id == session_id


def test_the_parent_is_the_head_a_root_or_a_turn() -> None:
    """S3: absent, null, a string."""
    uses = [read(session={"id": "s", **extra}).session for extra in ({}, {"parent": None}, {"parent": "r1"})]
    assert [(use.from_head, use.parent) for use in uses if use] == [(True, None), (False, None), (False, "r1")]


def test_session_options_are_read() -> None:
    use = read(
        session={
            "id": "s",
            "mode": "streaming",
            "on_busy": "supersede",
            "create": True,
            "replace": True,
            "drop_previous_output": True,
            "offset": -3,
            "idle_timeout_s": 5,
            "capacity_tokens": 100,
        }
    ).session
    assert use is not None
    assert (use.mode, use.on_busy, use.create, use.replace) == (SessionMode.STREAMING, OnBusy.SUPERSEDE, True, True)
    assert (use.drop_previous_output, use.offset, use.idle_timeout_s, use.capacity_tokens) == (True, -3, 5.0, 100)


def test_a_request_is_named_by_rid_or_by_idempotency_key() -> None:
    """T2."""
    assert read(rid="job-1").rid == "job-1"
    assert read(headers={"idempotency-key": "job-2"}).rid == "job-2"
    assert read(rid="job-1").named
    assert not read().named
    assert refused(headers={"idempotency-key": "k" * 2**20}).param == "Idempotency-Key"
    assert refused(headers={"idempotency-key": "a"}, rid="b").param == "rid"
    same = [read(temperature=0.5, **extra).digest for extra in ({}, {"stream": True}, {"rid": "x"})]
    assert len(set(same)) == 1
    assert read(temperature=0.6).digest != same[0]


def test_a_timeout_above_the_servers_maximum_or_switched_off_under_one_is_refused() -> None:
    """C1."""
    config = RemoraConfig(timeouts=TimeoutConfig(max_waiting_s=10.0))
    assert read(config=config, waiting_timeout_s=10).waiting_timeout_s == 10.0
    for value in (10.5, 0):
        assert refused(config=config, waiting_timeout_s=value).param == "waiting_timeout_s"
    assert read(waiting_timeout_s=0).waiting_timeout_s == 0.0


def test_top_p_zero_is_the_likeliest_token() -> None:
    sampling = read(top_p=0).sampling
    assert (sampling.top_p, sampling.top_k) == (1.0, 1)


BROKEN = {
    "invalid UTF-8": b'{"messages":[{"role":"user","content":"\xff"}]}',
    "lone surrogate": b'{"messages":[{"role":"user","content":"\\ud83d"}]}',
    "lone surrogate in stop": b'{"messages":[{"role":"user","content":"x"}],"stop":"\\ud83d"}',
    "raw NUL": b'{"messages":[{"role":"user","content":"\x00"}]}',
    "escaped NUL": b'{"messages":[{"role":"user","content":"\\u0000"}]}',
    "nested": b"[" * 100_000,
    "nested in an unknown field": b'{"messages":[{"role":"user","content":"x"}],"foo":'
    + b"[" * 900
    + b"]" * 900
    + b"}",
    "NaN": b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    "empty": b"",
    "not an object": b"[1]",
    "text": b"hello",
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("stream", [False, True])
def test_a_broken_body_is_400_and_says_nothing_of_the_inside(body: bytes, stream: bool) -> None:
    """I1, N63: no exception names, traces or file names, no echo."""
    if stream and body.startswith(b'{"messages"'):
        body = b'{"stream":true,' + body[1:]

    async def check() -> None:
        async with edge(says("x")) as at:
            call = await at.client.start("POST", "/v1/chat/completions", body).whole()
            assert at.worker.submits == []
            assert at.ends() == {("abort", "invalid", "ingress"): 1}
        assert call.status == 400
        assert len(call.body) < 1000
        for word in (b"Error", b"Traceback", b".py", b"orjson", b"hello"):
            assert word not in call.body.replace(b"invalid_request_error", b"")

    run(check())


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_413(announced: bool) -> None:
    """I1, N63."""

    async def check() -> None:
        async with edge(max_body_bytes=1000) as at:
            body = b'{"messages":"' + b"x" * 2000 + b'"}'
            headers = {"content-length": str(len(body))} if announced else {}
            call = await at.client.start("POST", "/v1/chat/completions", body, headers).whole()
        assert call.status == 413
        assert call.json()["error"]["code"] == "request_too_large"

    run(check())


def test_text_that_no_context_could_hold_is_refused_before_it_is_tokenised() -> None:
    """K5."""

    async def check() -> None:
        async with edge(max_context=100) as at:
            call = await at.client.chat("x" * 200).whole()
            assert at.worker.submits == []
        assert call.status == 400
        assert call.json()["error"]["reason"] == "too_large"
        assert call.json()["error"]["param"] == "messages"

    run(check())


def test_messages_that_the_template_refuses_are_400() -> None:
    async def check() -> None:
        async with edge(says("x")) as at:
            call = await at.client.chat([USER, {"role": "system", "content": "late"}]).whole()
        assert call.status == 400
        assert call.json()["error"]["param"] == "messages"

    run(check())


@pytest.mark.parametrize("given_id", ["r" * 10_000, "a\tb", "", "ключ".encode().decode("latin-1")])
def test_an_unfit_request_id_is_replaced_by_ours(given_id: str) -> None:
    """N64: the answer stays short and each record stays one line."""

    async def check() -> None:
        async with edge(says("x")) as at:
            call = await at.client.chat(headers={"x-request-id": given_id}).whole()
        assert call.status == 200
        assert call.headers["x-request-id"].startswith("req-")

    run(check())


WORDS = st.text("ab1 \n\x00é🙂", max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(sorted({param.split(".")[0].split("[")[0] for param, _ in WRONG} | {"tools", "modalities"}))


@given(st.dictionaries(FIELDS, JSON, max_size=4), st.dictionaries(st.sampled_from(["id", "mode", "offset"]), JSON))
def test_whatever_a_field_holds_it_is_taken_or_refused_with_its_name(fields: dict[str, Any], session: Any) -> None:
    """I1: never anything but an answer or an ApiError below 500."""
    tree = {"messages": [USER], "session": session or None, **fields}
    refusal = None
    try:
        request = read_chat(tree, {}, text=toy_text(), config=RemoraConfig())
    except ApiError as error:
        refusal = error
    assert refusal.status in (400, 404) if refusal else math.isfinite(request.sampling.temperature)


@given(st.binary(max_size=200))
def test_whatever_the_body_is_it_parses_or_is_refused(body: bytes) -> None:
    """I1."""
    refusal, tree = None, None
    try:
        tree = parse_object(body)
    except ApiError as error:
        refusal = error
    assert refusal.status == 400 if refusal else isinstance(tree, dict)
