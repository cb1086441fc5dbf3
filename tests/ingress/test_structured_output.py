"""Structured output over HTTP, with real workers, the real library and real compiling processes behind."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from actors.runner.script import ScriptRunner
from actors.runner.toy import toy_continuation
from configs import EngineConfig
from tests.ingress.asgi import Call, eventually, run
from tests.ingress.local import Cluster, cluster

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 9999}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
WRONG = {"type": "integer", "unevaluatedProperties": False}
SLOW = {"enum": [[n] for n in range(25_000)]}
"""Takes the library several seconds."""


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def ask(at: Cluster, content: str = "hi", **fields: Any) -> Call:
    return at.client.chat(content, **{"max_tokens": 120, "temperature": 1, "seed": 7, **fields})


def text_of(call: Call) -> str:
    assert call.status == 200, call.body
    return str(call.json()["choices"][0]["message"]["content"])


def error_of(call: Call) -> tuple[int, str, str, str | None]:
    error = call.json()["error"]
    return call.status, error["reason"], error["stage"], error["param"]


async def idle(at: Cluster) -> None:
    await eventually(lambda: at.pages()["request_owned"] == 0 and at.ingress.metrics.open_requests == 0)
    await eventually(lambda: at.shell()._grammar_effects.compiling == 0)
    matchers = at.shell().runner.matchers
    await eventually(lambda: matchers is None or len(matchers) == 0)


def conforms(text: str) -> bool:
    value = json.loads(text)
    return list(value) == ["ok", "n"] and isinstance(value["ok"], bool) and 0 <= value["n"] <= 9999


@pytest.mark.parametrize("depth", [0, 1])
def test_json_schema_unary_streamed_and_in_a_session(tmp_path: Path, depth: int) -> None:
    """I2, E5, S2."""

    async def check() -> None:
        async with cluster(tmp_path, engine=EngineConfig(check_invariants=True, depth=depth)) as at:
            asked = schema_format(SCHEMA)
            unary = await ask(at, response_format=asked).whole()
            stream = await ask(at, response_format=asked, stream=True).whole()
            assert conforms(text_of(unary))
            assert stream.text == text_of(unary)
            assert unary.json()["choices"][0]["finish_reason"] == "stop"
            many = [ask(at, f"q{n}", seed=n, response_format=asked) for n in range(12)]
            assert all([conforms(text_of(await call.whole())) for call in many])
            one = await ask(at, response_format=asked, session={"id": "s", "create": True}).whole()
            two = await ask(at, guided_choice=["red", "green"], session={"id": "s"}).whole()
            assert conforms(text_of(one))
            assert text_of(two) in ("red", "green")
            await idle(at)

    run(check())


def test_the_other_kinds(tmp_path: Path) -> None:
    async def check() -> None:
        async with cluster(tmp_path) as at:
            assert text_of(await ask(at, guided_choice=["yes", 'n"o\n']).whole()) in ("yes", 'n"o\n')
            assert re.fullmatch("[a-f]{5}-[0-9]{2}", text_of(await ask(at, guided_regex="[a-f]{5}-[0-9]{2}").whole()))
            grammar = 'root ::= "(" root ")" | "x"'
            assert re.fullmatch(r"\(*x\)*", text_of(await ask(at, guided_grammar=grammar).whole()))
            assert conforms(text_of(await ask(at, guided_json=SCHEMA).whole()))
            assert conforms(text_of(await ask(at, guided_json=json.dumps(SCHEMA)).whole()))
            thing = await ask(at, response_format={"type": "json_object"}, max_tokens=4000).whole()
            assert text_of(thing).startswith("{")
            if thing.json()["choices"][0]["finish_reason"] == "stop":
                assert isinstance(json.loads(text_of(thing)), dict)
            plain = await ask(at, response_format={"type": "text"}, temperature=0, max_tokens=9).whole()
            assert text_of(plain) == bytes(toy_continuation(list(b"user: hi\nassistant: "), 9)).decode()
            await idle(at)

    run(check())


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_names_its_field_and_leaves_the_session_alone(tmp_path: Path, stream: bool) -> None:
    """G01, G03, E3: a real 400, also for a stream; the next turn finds all that was committed."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            session = {"id": "s"}
            first = await ask(at, "one", max_tokens=8, temperature=0, session={**session, "create": True}).whole()
            asked = schema_format(WRONG)
            for _ in range(2):
                refused = await ask(at, "two", response_format=asked, session=session, stream=stream).whole()
                assert error_of(refused) == (400, "grammar_invalid", "grammar", "response_format")
                assert "unevaluatedProperties" in refused.json()["error"]["message"]
            after = await ask(at, "three", max_tokens=8, temperature=0, session=session).whole()
            context = f"user: one\nassistant: {text_of(first)}"
            wanted = toy_continuation(list(f"{context}\nuser: three\nassistant: ".encode()), 8)
            assert text_of(after) == bytes(wanted).decode()
            cached = after.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached in (len(context), len(context) - 1)
            bad = await ask(at, guided_regex="a|(").whole()
            assert error_of(bad) == (400, "grammar_invalid", "grammar", "guided_regex")
            odd = await ask(at, guided_choice=["a"], ignore_eos=True).whole()
            assert error_of(odd)[0::3] == (400, "ignore_eos")
            await idle(at)

    run(check())


def test_without_the_library_a_request_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G02."""

    async def check() -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        async with cluster(tmp_path) as at:
            monkeypatch.undo()
            refused = await ask(at, response_format=schema_format(SCHEMA)).whole()
            assert error_of(refused) == (400, "invalid", "routing", "response_format")
            assert "remora[grammar]" in refused.json()["error"]["message"]
            assert (await ask(at, max_tokens=3).whole()).status == 200
            await idle(at)

    run(check())


def test_a_runner_without_grammars_says_so(tmp_path: Path) -> None:
    """G02: never an answer that ignores the constraint."""

    def make() -> ScriptRunner:
        return ScriptRunner([65], vocab_bytes=[bytes([n % 256]) for n in range(260)], eos_id=257)

    async def check() -> None:
        async with cluster(tmp_path, runner=make) as at:
            refused = await ask(at, response_format={"type": "json_object"}).whole()
            assert error_of(refused) == (400, "invalid", "routing", "response_format")
            await idle(at)

    run(check())


def test_slow_grammars_neither_hold_up_others_nor_outlive_their_requests(tmp_path: Path) -> None:
    """N65, T10, A6: 503 within the limit, or gone with the socket; streams beside go on unchanged; nothing is
    remembered as invalid."""

    async def check() -> None:
        engine = EngineConfig(check_invariants=True, grammar_timeout_s=1.0)
        async with cluster(tmp_path, engine=engine, step_s=0.002) as at:
            streams = [ask(at, f"s{n}", temperature=0, max_tokens=700, stream=True) for n in range(4)]
            for stream in streams:
                await stream.until("content")
            bombs = [ask(at, response_format=schema_format({**SLOW, "title": str(n)})) for n in range(3)]
            gone = [ask(at, response_format=schema_format({**SLOW, "title": f"g{n}"})) for n in range(2)]
            await eventually(lambda: at.shell()._grammar_effects.compiling == 5)
            for call in gone:
                call.disconnect()
            for call in gone:
                await asyncio.wait({call.task})
            await eventually(lambda: at.shell()._grammar_effects.compiling <= 3)
            for call in bombs:
                await call.whole()
                assert error_of(call) == (503, "grammar_timeout", "grammar", "response_format")
                assert call.headers["retry-after"] == "1"
            for n, stream in enumerate(streams):
                wanted = toy_continuation(list(f"user: s{n}\nassistant: ".encode()), 700)
                assert (await stream.whole()).text == bytes(wanted).decode()
            small = await ask(at, response_format=schema_format(SCHEMA)).whole()
            while small.status == 503:  # A busy machine; what counts is that it is not remembered as invalid.
                small = await ask(at, response_format=schema_format(SCHEMA)).whole()
            assert conforms(text_of(small))
            await idle(at)

    run(check(), limit_s=60.0)


def test_an_abort_finds_a_request_that_compiles(tmp_path: Path) -> None:
    """A12, A4: 200 with finish_reason "abort", as for any queued request; the stage is told."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            call = ask(at, response_format=schema_format(SLOW), rid="slow")
            await eventually(lambda: at.shell()._grammar_effects.compiling == 1)
            answer = await at.client.start("POST", "/v1/aborts", {"rid": "slow"}).whole()
            assert answer.status == 200
            assert '"grammar"' in answer.body.decode()
            await call.whole()
            assert call.status == 200
            assert call.json()["choices"][0]["finish_reason"] == "abort"
            assert call.json()["usage"]["completion_tokens"] == 0
            await idle(at)

    run(check())
