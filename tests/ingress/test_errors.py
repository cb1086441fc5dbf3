"""Reasons over HTTP: statuses, headers and the one error body."""

from __future__ import annotations

import pytest

from actors.ingress.errors import GENERIC_INTERNAL, VERDICTS, from_finished, is_answer
from actors.messages import Event, Finished, Outcome, Reason, Stage, Submit
from tests.ingress.asgi import run
from tests.ingress.harness import edge
from tests.ingress.scripted import aborted, tokens

STATUS = {
    200: {"client_abort", "superseded", "session_closed"},
    400: {"parent_unfinished", "invalid", "too_large", "session_capacity", "grammar_invalid"},
    404: {"session_unknown", "parent_unknown"},
    409: {"session_busy", "session_closing", "session_exists"},
    429: {"queue_full"},
    500: {"internal"},
    503: {
        "waiting_timeout",
        "worker_draining",
        "worker_lost",
        "shutdown",
        "grammar_timeout",
        "running_timeout",
        "deadline",
        "client_disconnect",
    },
}
WITH_RETRY_AFTER = {
    "queue_full",
    "waiting_timeout",
    "worker_draining",
    "worker_lost",
    "shutdown",
    "grammar_timeout",
    "client_disconnect",
}
BODY_KEYS = {"message", "type", "code", "param", "reason", "stage", "retryable", "request_id"}


def test_the_map_covers_every_reason_and_says_what_the_contract_says() -> None:
    """E2, E3."""
    assert {reason: verdict.status for reason, verdict in VERDICTS.items()} == {
        Reason(name): status for status, names in STATUS.items() for name in names
    }
    assert set(VERDICTS) == set(Reason)
    assert {r.value for r, v in VERDICTS.items() if v.retry_after_s} == WITH_RETRY_AFTER


@pytest.mark.parametrize(
    "reason", [r for r in Reason if r is not Reason.WORKER_LOST and r is not Reason.WORKER_DRAINING]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_is_told_with_its_status_and_the_one_body(reason: Reason, stream: bool) -> None:
    """E3, E4: W20: session case M06: for each reason that a worker may answer with, streamed or not."""

    async def check() -> None:
        async with edge(lambda submit: [aborted(submit, reason, message="because", param="p")]) as at:
            call = await at.client.chat(stream=stream, headers={"x-request-id": "r-1"}).whole()
            assert at.ends() == {("abort", reason.value, "waiting"): 1}
        assert call.status == VERDICTS[reason].status
        assert call.headers["x-request-id"] == "r-1"
        if call.status == 200:
            last = call.events[-2] if stream else call.json()
            assert last["choices"][0]["finish_reason"] == "abort"
            return
        error = call.json()["error"]
        assert set(error) == BODY_KEYS
        assert error["reason"] == reason.value
        assert error["stage"] == "waiting"
        assert error["request_id"] == "r-1"
        assert error["message"] == (GENERIC_INTERNAL if reason is Reason.INTERNAL else "because")
        assert error["param"] == "p"
        assert call.headers["x-should-retry"] == ("true" if error["retryable"] else "false")
        assert ("retry-after" in call.headers) == (reason.value in WITH_RETRY_AFTER)

    run(check())


@pytest.mark.parametrize("reason", ["running_timeout", "deadline"])
def test_what_took_too_long_is_not_to_be_tried_again(reason: str) -> None:
    """E3."""

    async def check() -> None:
        async with edge(lambda submit: [aborted(submit, Reason(reason), Stage.DECODE)]) as at:
            call = await at.client.chat().whole()
        assert call.headers["x-should-retry"] == "false"

    run(check())


def test_a_unary_abort_has_its_partial_text_and_usage() -> None:
    """E3, E5: W21: field case N54."""

    async def check() -> None:
        def script(submit: Submit) -> list[Event]:
            end = aborted(submit, Reason.SUPERSEDED, Stage.DECODE, prompt_tokens=7, completion_tokens=2)
            return [tokens(submit, "ab"), end]

        async with edge(script) as at:
            call = await at.client.chat().whole()
        answer = call.json()
        assert answer["choices"][0] == {
            "index": 0,
            "message": {"role": "assistant", "content": "ab", "refusal": None},
            "logprobs": None,
            "finish_reason": "abort",
        }
        assert answer["usage"]["total_tokens"] == 9

    run(check())


def test_the_same_key_with_another_body_is_422() -> None:
    """T2."""

    async def check() -> None:
        async with edge(lambda submit: [aborted(submit, Reason.INVALID, param="idempotency_key")]) as at:
            call = await at.client.chat().whole()
        assert call.status == 422

    run(check())


def test_an_end_without_a_reason_counts_as_internal() -> None:
    assert not is_answer(Finished(ingress="", key="", outcome=Outcome.ABORT))


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/v1/chat/completions", 405)])
def test_unknown_routes_and_methods_get_the_one_body(method: str, path: str, status: int) -> None:
    """E4."""

    async def check() -> None:
        async with edge() as at:
            call = await at.client.start(method, path).whole()
        assert call.status == status
        assert set(call.json()["error"]) == BODY_KEYS

    run(check())


def test_what_an_internal_end_was_about_is_for_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    """E4, I1: the client is told nothing of the inside; whoever runs the server is."""
    end = Finished(
        ingress="i", key="k", outcome=Outcome.ABORT, reason=Reason.INTERNAL, message="turn 'b' continues from 'a'"
    )
    error = from_finished(end, "", 0)
    assert "continues" not in error.message
    assert "continues from 'a'" in caplog.text
