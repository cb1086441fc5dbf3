"""The application over real workers: engine, loop thread, toy runner and store of one process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.ingress.toy_text import TOY_VOCAB_BYTES
from actors.runner.script import ScriptRunner
from actors.runner.toy import TOY_VOCAB_SIZE, toy_continuation
from configs import EngineConfig
from tests.ingress.asgi import Call, eventually, run
from tests.ingress.local import Cluster, cluster

SESSION = {"id": "s", "create": True}


def reply(prompt: str, count: int) -> str:
    """What the toy runner says after this text, alone on a fresh engine."""
    return bytes(toy_continuation(list(prompt.encode()), count)).decode()


def chat(at: Cluster, content: str, max_tokens: int = 8, **fields: Any) -> Call:
    return at.client.chat(content, temperature=0, max_tokens=max_tokens, **fields)


def text_of(call: Call) -> str:
    assert call.status == 200, call.body
    return str(call.json()["choices"][0]["message"]["content"])


async def idle(at: Cluster) -> None:
    """Every request over, its pages back."""
    await eventually(
        lambda: all(at.pages(w)["request_owned"] == 0 for w in at.pool.workers if not at.pool.workers[w].dead)
    )
    await eventually(lambda: at.ingress.metrics.open_requests == 0)


def test_unary_and_stream_say_what_the_model_says(tmp_path: Path) -> None:
    """I2, I3, E5."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            unary = await chat(at, "hello").whole()
            stream = await chat(at, "hello", stream=True, stream_options={"include_usage": True}).whole()
            expected = reply("user: hello\nassistant: ", 8)
            assert text_of(unary) == stream.text == expected
            assert unary.json()["choices"][0]["finish_reason"] == "length"
            prompt = len("user: hello\nassistant: ")
            assert unary.json()["usage"] | {"prompt_tokens_details": None} == {
                "prompt_tokens": prompt,
                "completion_tokens": 8,
                "total_tokens": prompt + 8,
                "prompt_tokens_details": None,
            }
            assert stream.events[-2]["usage"]["prompt_tokens"] == prompt
            await idle(at)

    run(check())


def test_a_session_needs_only_what_is_new(tmp_path: Path) -> None:
    """S1, S4, K1: the second turn's prompt is the first with its reply; its KV is there already."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            first = await chat(at, "one", session=SESSION).whole()
            second = await chat(at, "two", session={"id": "s"}).whole()
            context = "user: one\nassistant: " + text_of(first)
            prompt = context + "\nuser: two\nassistant: "
            assert text_of(second) == reply(prompt, 8)
            usage = second.json()["usage"]
            assert usage["prompt_tokens"] == len(prompt)
            assert usage["prompt_tokens_details"]["cached_tokens"] in (len(context), len(context) - 1)
            assert second.json()["session"] == {"id": "s", "turn": 2, "worker": "w1"}
            root = await chat(at, "three", session={"id": "s", "parent": None}).whole()
            assert text_of(root) == reply("user: three\nassistant: ", 8)
            branch = await chat(at, "two", session={"id": "s", "parent": first.json()["id"]}).whole()
            assert text_of(branch) == text_of(second)
            info = (await at.client.get("/v1/sessions/s")).json()
            assert (info["turns"], info["worker"], info["state"]) == (4, "w1", "idle")
            again = await chat(at, "x", session=SESSION).whole()
            assert (again.status, again.json()["error"]["reason"]) == (409, "session_exists")

    run(check())


def test_a_system_message_may_open_a_session_but_not_interrupt_it(tmp_path: Path) -> None:
    """T6, S14: messages that only a beginning may have never run without the history that is there."""

    async def check() -> None:
        opening = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
        async with cluster(tmp_path) as at:
            await at.client.post("/v1/sessions", {"id": "s"})
            first = await at.client.chat(opening, temperature=0, max_tokens=8, session={"id": "s"}).whole()
            assert text_of(first) == reply("system: be kind\nuser: hi\nassistant: ", 8)
            late = await at.client.chat(opening, session={"id": "s"}).whole()
            assert (late.status, late.json()["error"]["param"]) == (400, "messages")
            assert (await chat(at, "more", session={"id": "s"}).whole()).json()["session"]["turn"] == 2

    run(check())


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_gives_the_pages_back_and_the_session_goes_on(tmp_path: Path, stream: bool) -> None:
    """A1, A7, K2, S2: the next turn works at once, as if the aborted one had never been sent."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.002) as at:
            first = await chat(at, "one", session=SESSION).whole()
            call = chat(at, "two", max_tokens=5000, session={"id": "s"}, stream=stream)
            await eventually(lambda: at.shell().stats()["running"])
            if stream:
                await call.piece()
            call.disconnect()
            await call.whole()
            third = await chat(at, "three", session={"id": "s"}).whole()
            context = "user: one\nassistant: " + text_of(first)
            assert text_of(third) == reply(context + "\nuser: three\nassistant: ", 8)
            assert third.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(context) - 1
            await idle(at)

    run(check())


def test_leaving_from_the_queue_costs_no_step(tmp_path: Path) -> None:
    """A1, C4: field case N03: ten unary and ten streams wait behind one that runs; all leave."""

    async def check() -> None:
        engine = EngineConfig(max_running=1, check_invariants=True)
        async with cluster(tmp_path, step_s=0.005, engine=engine) as at:
            running = chat(at, "busy", max_tokens=5000, stream=True)
            await running.piece()
            calls = [chat(at, f"q{n}", stream=n % 2 == 0) for n in range(20)]
            await eventually(lambda: at.shell().stats()["waiting"] == 20)
            for call in calls:
                call.disconnect()
            await eventually(lambda: at.shell().stats()["waiting"] == 0)
            assert not running.task.done()
            report = (await at.client.post("/v1/aborts", {"all": True})).json()
            assert len(report["hit"]) == 1
            await running.whole()
            assert running.events[-2]["choices"][0]["finish_reason"] == "abort"
            await idle(at)

    run(check())


def test_an_abort_by_name_hits_that_name_only(tmp_path: Path) -> None:
    """A2, A4: field case N54, session case M04: 200 with the partial text and usage; `job-10` runs on."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.002, workers=2) as at:
            one = chat(at, "a", max_tokens=5000, rid="job-1")
            ten = chat(at, "b", max_tokens=5000, rid="job-10")
            await eventually(lambda: sum(int(str(at.shell(w).stats()["running"])) for w in ("w1", "w2")) == 2)
            report = (await at.client.post("/v1/aborts", {"rid": "job-1"})).json()
            assert [hit["rid"] for hit in report["hit"]] == ["job-1"]
            await one.whole()
            answer = one.json()
            assert answer["choices"][0]["finish_reason"] == "abort"
            assert len(answer["choices"][0]["message"]["content"]) == answer["usage"]["completion_tokens"]
            assert not ten.task.done()
            assert (await at.client.post("/v1/aborts", {"rid": "job-1"})).json()["already_ended"] == ["job-1"]
            assert (await at.client.post("/v1/aborts", {"prefix": "job-"})).json()["hit"][0]["rid"] == "job-10"
            assert (await at.client.post("/v1/aborts", {"rid": "never"})).json()["unknown"] == ["never"]
            await ten.whole()
            await idle(at)

    run(check())


def test_a_busy_session_refuses_queues_or_is_superseded(tmp_path: Path) -> None:
    """S6, S7."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.002) as at:
            await chat(at, "one", session=SESSION).whole()
            long = chat(at, "two", max_tokens=5000, session={"id": "s"})
            await eventually(lambda: at.shell().stats()["running"])
            busy = await chat(at, "x", session={"id": "s"}, stream=True).whole()
            assert (busy.status, busy.json()["error"]["reason"]) == (409, "session_busy")
            queued = chat(at, "later", session={"id": "s", "on_busy": "queue"})
            new = await chat(at, "new", session={"id": "s", "on_busy": "supersede"}).whole()
            await long.whole()
            await queued.whole()
            assert new.status == 200
            assert long.json()["choices"][0]["finish_reason"] == "abort"
            await idle(at)

    run(check())


def test_a_killed_workers_session_goes_on_elsewhere_with_its_history(tmp_path: Path) -> None:
    """T1, T4: from the store, at the price of a prefill."""

    async def check() -> None:
        async with cluster(tmp_path, workers=2) as at:
            first = await chat(at, "one", session=SESSION).whole()
            assert first.headers["x-remora-worker"] == "w1"
            await asyncio.to_thread(at.pool.workers["w1"].kill)
            second = await chat(at, "two", session={"id": "s"}).whole()
            prompt = "user: one\nassistant: " + text_of(first) + "\nuser: two\nassistant: "
            assert text_of(second) == reply(prompt, 8)
            assert second.headers["x-remora-worker"] == "w2"
            info = (await at.client.get("/v1/sessions/s")).json()
            assert (info["epoch"], info["turns"]) == (2, 2)

    run(check())


def test_closing_frees_everything(tmp_path: Path) -> None:
    """S9, K6: the answer says what was freed; unknown afterwards; an abort close ends the running turn."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.002) as at:
            await chat(at, "one", session=SESSION).whole()
            long = chat(at, "two", max_tokens=5000, session={"id": "s"})
            await eventually(lambda: at.shell().stats()["running"])
            closed = await at.client.start("DELETE", "/v1/sessions/s?mode=abort").whole()
            await long.whole()
            assert closed.status == 200
            assert closed.json()["turns"] == 1
            assert long.json()["choices"][0]["finish_reason"] == "abort"
            gone = await chat(at, "x", session={"id": "s"}).whole()
            assert gone.status == 404
            await eventually(lambda: at.pages()["session_held"] == 0)
            await idle(at)

    run(check())


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 10**12}, {"content": "x" * 8192}, {"content": "x" * 8100, "max_tokens": 500}]
)
def test_what_cannot_fit_is_refused_with_its_numbers(tmp_path: Path, fields: dict[str, Any]) -> None:
    """K5: field case N62: streamed too, as a real status."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            body = {"content": "hi", "max_tokens": 5, **fields}
            for stream in (False, True):
                call = await at.client.chat(body["content"], max_tokens=body["max_tokens"], stream=stream).whole()
                assert call.status == 400
                assert call.json()["error"]["code"] == "context_length_exceeded"
                assert "8192" in call.json()["error"]["message"]

    run(check())


def test_a_full_queue_is_429(tmp_path: Path) -> None:
    """P3, E3."""

    async def check() -> None:
        engine = EngineConfig(max_running=1, max_waiting=1, check_invariants=True)
        async with cluster(tmp_path, step_s=0.005, engine=engine) as at:
            calls = [chat(at, "a", max_tokens=5000)]
            await eventually(lambda: at.shell().stats()["running"] == 1)
            calls.append(chat(at, "b"))
            await eventually(lambda: at.shell().stats()["waiting"] == 1)
            full = await chat(at, "c", stream=True).whole()
            assert full.status == 429
            assert full.headers["retry-after"] == "1"
            late = await at.client.post("/v1/aborts", {"all": True})
            assert len(late.json()["hit"]) == 2
            for call in calls:
                await call.whole()

    run(check())


def test_timeouts_are_errors_with_what_was_made(tmp_path: Path) -> None:
    """C1, E3: W21: field case N59, session case T05: waiting before the first token, running after some."""

    async def check() -> None:
        engine = EngineConfig(max_running=1, check_invariants=True)
        async with cluster(tmp_path, step_s=0.005, engine=engine) as at:
            running = chat(at, "a", max_tokens=5000, running_timeout_s=0.3, stream=True)
            await running.piece()
            waiting = await chat(at, "b", waiting_timeout_s=0.05, stream=True).whole()
            assert (waiting.status, waiting.json()["error"]["reason"]) == (503, "waiting_timeout")
            await running.whole()
            error = running.events[-2]["error"]
            assert (running.status, error["reason"]) == (200, "running_timeout")
            assert error["partial"]["text"] == running.text
            assert error["partial"]["completion_tokens"] == len(running.text)

    run(check())


def test_stop_strings_and_split_characters_over_the_engine(tmp_path: Path) -> None:
    """I2: field cases N55, N56."""
    script = "né 🙂 alpha beta gamma delta".encode()

    def runner() -> ScriptRunner:
        return ScriptRunner(list(script), vocab_bytes=TOY_VOCAB_BYTES, eos_id=TOY_VOCAB_SIZE - 1)

    async def check() -> None:
        async with cluster(tmp_path, runner=runner, flush_s=0.0) as at:
            whole = await at.client.chat("x").whole()
            assert text_of(whole) == script.decode()
            assert whole.json()["choices"][0]["finish_reason"] == "stop"
            for stop, shown in (
                (["beta gamma"], "né 🙂 alpha "),
                (["ta g", "beta gam"], "né 🙂 alpha be"),
                ("🙂", "né "),
            ):
                unary = await at.client.chat("x", stop=stop).whole()
                stream = await at.client.chat("x", stop=stop, stream=True).whole()
                assert text_of(unary) == stream.text == shown
                assert unary.json()["choices"][0]["finish_reason"] == "stop"
                assert "�" not in stream.body.decode()
            await idle(at)

    run(check())
