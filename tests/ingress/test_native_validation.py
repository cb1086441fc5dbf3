"""Hostile bodies for SGLang's own API: wrong values of known fields are 400 naming the field (rule I1)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from actors.ingress.errors import ApiError
from actors.ingress.native_fields import REFUSED
from actors.ingress.native_request import NativeRequest, read_generate
from actors.ingress.prompts import IdsPrompt, TextPrompt
from actors.ingress.toy_text import toy_text
from actors.messages import GrammarKind
from configs import RemoraConfig
from tests.ingress.asgi import run
from tests.ingress.harness import edge
from tests.ingress.scripted import says


def read(headers: dict[str, str] | None = None, **fields: Any) -> NativeRequest:
    tree = {"text": "hi", **fields}
    return read_generate(tree, headers or {}, text=toy_text(max_context=1000), config=RemoraConfig())


def settings(**fields: Any) -> dict[str, Any]:
    return {"sampling_params": fields}


IDS = {"text": None}
TWO = {"text": ["a", "b"]}
SCHEMA = {"type": "object"}

WRONG: list[tuple[str, dict[str, Any]]] = [
    ("text", {"text": None}),
    ("text", {"text": 5}),
    ("text", {"text": []}),
    ("text", {"text": "a\x00"}),
    ("text", {"text": ["x"] * 129}),
    ("text[1]", {"text": ["a", 5]}),
    ("text[0]", {"text": [["nested"]]}),
    ("input_ids", {"input_ids": [1]}),
    ("input_ids", {**IDS, "input_ids": "1"}),
    ("input_ids", {**IDS, "input_ids": []}),
    ("input_ids[1]", {**IDS, "input_ids": [1, -1]}),
    ("input_ids[0]", {**IDS, "input_ids": [2**40]}),
    ("input_ids[0]", {**IDS, "input_ids": [True]}),
    ("input_ids[1]", {**IDS, "input_ids": [[1], []]}),
    ("input_ids[1]", {**IDS, "input_ids": [[1], 2]}),
    ("input_ids[1][0]", {**IDS, "input_ids": [[1], ["x"]]}),
    ("rid", {"rid": 5}),
    ("rid", {"rid": ""}),
    ("rid", {"rid": ["a"]}),
    ("rid", {**TWO, "rid": ["a"]}),
    ("rid", {**TWO, "rid": ["a", "a"]}),
    ("rid[1]", {**TWO, "rid": ["a", 5]}),
    ("stream", {"stream": "yes"}),
    ("priority", {"priority": 1.5}),
    ("model", {"model": "another"}),
    ("waiting_timeout_s", {"waiting_timeout_s": -1}),
    ("deadline_s", {"deadline_s": "soon"}),
    ("on_duplicate", {"on_duplicate": "x"}),
    ("cache_salt", {"cache_salt": 5}),
    ("extra_key", {"extra_key": 5}),
    ("extra_key", {**TWO, "extra_key": ["a", "b"]}),
    ("return_logprob", {"return_logprob": "yes"}),
    ("return_logprob", {**TWO, "return_logprob": [True, False]}),
    ("top_logprobs_num", {"top_logprobs_num": -1}),
    ("top_logprobs_num", {"top_logprobs_num": 21}),
    ("logprob_start_len", {"return_logprob": True, "logprob_start_len": -2}),
    ("logprob_start_len", {**TWO, "return_logprob": True, "logprob_start_len": [0]}),
    ("token_ids_logprob", {"return_logprob": True, "token_ids_logprob": 5}),
    ("token_ids_logprob[1]", {"return_logprob": True, "token_ids_logprob": [5, -1]}),
    ("token_ids_logprob", {"return_logprob": True, "token_ids_logprob": [5] * 1025}),
    ("token_ids_logprob", {**TWO, "return_logprob": True, "token_ids_logprob": [[5]]}),
    ("token_ids_logprob", {**TWO, "return_logprob": True, "token_ids_logprob": [[5], "x"]}),
    ("return_text_in_logprobs", {"return_text_in_logprobs": 1}),
    ("session_params", {"session_params": "s"}),
    ("session_params.id", {"session_params": {"id": 5}}),
    ("session_params.id", {"session_params": {"id": ""}}),
    ("session_params.rid", {"session_params": {"id": "s", "rid": 5}}),
    ("session_params.offset", {"session_params": {"id": "s", "offset": 1.5}}),
    ("session_params.replace", {"session_params": {"id": "s", "replace": "yes"}}),
    ("session_params.drop_previous_output", {"session_params": {"id": "s", "drop_previous_output": 1}}),
    ("session_id", {"session_id": 5}),
    ("session_id", {"session_id": "a", "session_params": {"id": "s"}}),
    ("session", {"session": {"id": "a"}, "session_id": "s"}),
    ("session.id", {"session": {"mode": "tree"}}),
    ("text", {**TWO, "session_id": "s"}),
    ("sampling_params.n", {"session_id": "s", **settings(n=2)}),
    ("sampling_params", {"sampling_params": "x"}),
    ("sampling_params", {"sampling_params": [{}]}),
    ("sampling_params", {**TWO, "sampling_params": [{}]}),
    ("sampling_params[1]", {**TWO, "sampling_params": [{}, 5]}),
    ("sampling_params[1].n", {**TWO, "sampling_params": [{"n": 1}, {"n": 2}]}),
    ("sampling_params[1].stop", {**TWO, "sampling_params": [{}, {"stop": 5}]}),
    ("sampling_params.n", settings(n=0)),
    ("sampling_params.n", settings(n=129)),
    ("sampling_params.n", {**TWO, **settings(n=65)}),
    ("sampling_params.max_new_tokens", settings(max_new_tokens=-1)),
    ("sampling_params.max_new_tokens", settings(max_new_tokens="9")),
    ("sampling_params.max_new_tokens", settings(max_new_tokens=10**9)),
    ("sampling_params.min_new_tokens", settings(min_new_tokens=-1)),
    ("sampling_params.sampling_seed", settings(sampling_seed="x")),
    ("sampling_params.temperature", settings(temperature=-1)),
    ("sampling_params.top_p", settings(top_p=2)),
    ("sampling_params.top_k", settings(top_k=-2)),
    ("sampling_params.min_p", settings(min_p=-0.5)),
    ("sampling_params.frequency_penalty", settings(frequency_penalty=3)),
    ("sampling_params.presence_penalty", settings(presence_penalty="x")),
    ("sampling_params.repetition_penalty", settings(repetition_penalty=0)),
    ("sampling_params.logit_bias", settings(logit_bias={"x": 1})),
    ("sampling_params.logit_bias", settings(logit_bias={"1": "x"})),
    ("sampling_params.logit_bias", settings(logit_bias=[1])),
    ("sampling_params.stop", settings(stop=5)),
    ("sampling_params.stop", settings(stop=["x"] * 17)),
    ("sampling_params.stop[1]", settings(stop=["x", ""])),
    ("sampling_params.stop_token_ids", settings(stop_token_ids=5)),
    ("sampling_params.stop_token_ids[0]", settings(stop_token_ids=[-1])),
    ("sampling_params.ignore_eos", settings(ignore_eos=1)),
    ("sampling_params.no_stop_trim", settings(no_stop_trim=1)),
    ("sampling_params.skip_special_tokens", settings(skip_special_tokens="x")),
    ("sampling_params.spaces_between_special_tokens", settings(spaces_between_special_tokens=False)),
    ("sampling_params.beam_width", settings(beam_width=2)),
    ("sampling_params.stop_regex", settings(stop_regex="a+")),
    ("sampling_params.structural_tag", settings(structural_tag="{}")),
    ("sampling_params.json_schema", settings(json_schema="{")),
    ("sampling_params.json_schema", settings(json_schema=5)),
    ("sampling_params.regex", settings(regex="")),
    ("sampling_params.ebnf", settings(ebnf=5)),
    ("sampling_params.regex", settings(json_schema=SCHEMA, regex="a")),
    ("sampling_params.ebnf", settings(regex="a", ebnf="root ::= 'a'")),
    *((name, {name: True}) for name in REFUSED),
]


@pytest.mark.parametrize(("param", "fields"), WRONG, ids=[f"{param} {str(fields)[:60]}" for param, fields in WRONG])
def test_wrong_values_are_refused_by_name(param: str, fields: dict[str, Any]) -> None:
    """I1: by the name that the client wrote."""
    with pytest.raises(ApiError) as caught:
        read(**fields)
    assert caught.value.param == param
    assert caught.value.status == (404 if param == "model" else 400)


def test_unknown_fields_and_empty_values_are_nothing() -> None:
    """I1: null means the default, also where something is not supported."""
    names = (*REFUSED, "rid", "stream", "session_params", "session_id", "sampling_params", "extra_key")
    empty: dict[str, Any] = {"no_such_field": {"a": [1]}, "image_data": [], "lora_path": [None], "background": False}
    request = read(**{**dict.fromkeys(names), **empty})
    assert request.session is None
    assert (request.sampling.max_tokens, request.sampling.temperature, request.choices) == (128, 1.0, 1)
    assert not request.listed


@pytest.mark.parametrize(
    ("fields", "kind", "where"),
    [
        ({"json_schema": '{"type": "object"}'}, GrammarKind.JSON_SCHEMA, "json_schema"),
        ({"json_schema": SCHEMA}, GrammarKind.JSON_SCHEMA, "json_schema"),
        ({"json_schema": "$$ANY$$"}, GrammarKind.JSON_OBJECT, "json_schema"),
        ({"regex": "a+"}, GrammarKind.REGEX, "regex"),
        ({"ebnf": "root ::= 'a'"}, GrammarKind.EBNF, "ebnf"),
    ],
)
def test_grammars_are_ours(fields: dict[str, Any], kind: GrammarKind, where: str) -> None:
    request = read(**settings(**fields))
    assert request.grammar is not None
    assert (request.grammar.kind, request.grammar_field) == (kind, f"sampling_params.{where}")


def test_prompts_keep_where_they_were_written() -> None:
    assert read(text=["a", "b"]).prompts == (TextPrompt("a", "text[0]"), TextPrompt("b", "text[1]"))
    assert read(text=None, input_ids=[1, 2]).prompts == (IdsPrompt((1, 2), "input_ids"),)


def test_the_idempotency_key_names_it_too() -> None:
    """T2."""
    assert (read({"idempotency-key": "k"}).rid, read({"idempotency-key": "k"}).named) == ("k", True)
    with pytest.raises(ApiError) as caught:
        read({"idempotency-key": "k"}, rid="other")
    assert caught.value.param == "rid"


OTHERS = [
    ("/open_session", {"session_id": 5}, "session_id"),
    ("/open_session", {"session_id": ""}, "session_id"),
    ("/open_session", {"streaming": "yes"}, "streaming"),
    ("/open_session", {"timeout": -1}, "timeout"),
    ("/open_session", {"timeout": "long"}, "timeout"),
    ("/open_session", {"capacity_of_str_len": "x"}, "capacity_of_str_len"),
    ("/open_session", {"capacity_of_str_len": -1}, "capacity_of_str_len"),
    ("/open_session", {"capacity_tokens": 1.5}, "capacity_tokens"),
    ("/close_session", {}, "session_id"),
    ("/close_session", {"session_id": 5}, "session_id"),
    ("/abort_request", {}, "rid"),
    ("/abort_request", {"rid": ""}, "rid"),
    ("/abort_request", {"rid": 5}, "rid"),
    ("/abort_request", {"rid": ["a"]}, "rid"),
    ("/abort_request", {"abort_all": "yes"}, "abort_all"),
    ("/pause_generation", {"mode": "gently"}, "mode"),
    ("/pause_generation", {"mode": 5}, "mode"),
]


@pytest.mark.parametrize(("path", "body", "param"), OTHERS)
def test_the_other_routes_name_the_field_too(path: str, body: dict[str, Any], param: str) -> None:
    """I1, E4."""

    async def check() -> None:
        async with edge() as at:
            call = await at.client.post(path, body)
            assert (call.status, call.json()["error"]["param"]) == (400, param)
            assert at.pool.pauses == []

    run(check())


@pytest.mark.parametrize(
    "path", ["/generate", "/open_session", "/close_session", "/abort_request", "/pause_generation"]
)
@pytest.mark.parametrize("body", [b"[1]", b"{", b'"x"', b'{"text": NaN}', b"\xff", b"[" * 9000 + b"]" * 9000, b"null"])
def test_what_is_no_object_is_refused(path: str, body: bytes) -> None:
    """I1."""

    async def check() -> None:
        async with edge() as at:
            call = await at.client.post(path, body)
            assert (call.status, call.json()["error"]["code"]) == (400, "invalid_json")

    run(check())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    sorted({param.partition(".")[0].partition("[")[0] for param, _ in WRONG} | {"user", "stream_options"})
)
SETTINGS = st.dictionaries(
    st.sampled_from(
        sorted({param.split(".")[1].partition("[")[0] for param, _ in WRONG if param.startswith("sampling_params.")})
    ),
    VALUES,
    max_size=4,
)


@settings_of(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(NAMES, VALUES, max_size=5), SETTINGS)
def test_any_value_anywhere_is_read_or_refused(fields: dict[str, Any], given_settings: dict[str, Any]) -> None:
    """I1: an error of the caller's, naming a field, or a request; never anything else."""
    request, error = outcome(**{"sampling_params": given_settings, **fields})
    if error is not None:
        assert error.status in (400, 404)
        assert error.param or error.code == "invalid_json"
    if request is not None:
        assert 1 <= request.replies <= 128
        assert [request.part(index)[0] for index in range(request.replies)]


def outcome(**fields: Any) -> tuple[NativeRequest | None, ApiError | None]:
    try:
        return read(**fields), None
    except ApiError as error:
        return None, error


def test_control_tokens_are_shown_where_asked_for() -> None:
    """`skip_special_tokens: false`; the toy's only control tokens have no text."""

    async def check() -> None:
        async with edge(says("x")) as at:
            for shown in (True, False):
                body = {"text": "a", **settings(skip_special_tokens=shown, stop=["q"])}
                assert (await at.client.post("/generate", body)).json()["text"] == "x"

    run(check())
