"""POST /v1/messages: Anthropic's shapes over the one exchange."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from actors.messages import Event, Outcome, Reason, Stage, Submit
from configs import TenantLimits
from tests.ingress.asgi import Call, Client, run
from tests.ingress.harness import edge
from tests.ingress.keyed import ACME, Keyed, keys
from tests.ingress.local import cluster
from tests.ingress.scripted import Script, aborted, says, stopped, tokens

HELLO = [{"role": "user", "content": "hello"}]


def ask(client: Client, messages: Any = HELLO, headers: dict[str, str] | None = None, **fields: Any) -> Call:
    return client.start("POST", "/v1/messages", {"messages": messages, "max_tokens": 100, **fields}, headers)


def named(call: Call) -> list[tuple[str, dict[str, Any]]]:
    """(name, data) of each event; the two must agree."""
    names = [line[7:] for line in call.body.decode().split("\n") if line.startswith("event: ")]
    assert len(names) == len(call.events)
    assert all(name == data["type"] for name, data in zip(names, call.events, strict=True))
    return list(zip(names, call.events, strict=True))


def put_together(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream tells, as Anthropic's own clients gather it."""
    message: dict[str, Any] = {}
    for event in events:
        kind = event["type"]
        if kind == "message_start":
            message = event["message"]
        elif kind == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(dict(event["content_block"]))
        elif kind == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            field = {"text_delta": "text", "thinking_delta": "thinking"}[delta["type"]]
            block[field] += delta[field]
        elif kind == "message_delta":
            message.update(event["delta"], usage=event["usage"])
            message.update({name: event[name] for name in ("session", "replayed") if name in event})
    return message


def test_a_message_has_anthropics_shape() -> None:
    async def check() -> None:
        async with edge(says("hi there")) as at:
            call = await ask(at.client, headers={"anthropic-version": "2023-06-01"}).whole()
        assert call.status == 200
        message = call.json()
        assert message.pop("id").startswith("msg_")
        assert message == {
            "type": "message",
            "role": "assistant",
            "model": "toy",
            "content": [{"type": "text", "text": "hi there"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": len(at.worker.submits[0].input_ids),
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 8,
            },
        }

    run(check())


def test_a_stream_tells_its_events_in_their_order() -> None:
    """E3: the message, its block, what is in it, how it ended, the end marker."""

    async def check() -> None:
        async with edge(says("hi there")) as at:
            call = await ask(at.client, stream=True).whole()
        assert call.headers["content-type"].startswith("text/event-stream")
        names = [name for name, _ in named(call)]
        assert names == [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        start = call.events[0]["message"]
        assert (start["content"], start["stop_reason"]) == ([], None)
        assert start["usage"]["input_tokens"] == len(at.worker.submits[0].input_ids)

    run(check())


def ended(**fields: Any) -> Script:
    return lambda submit: [tokens(submit, "abcdef"), stopped(submit, 6, **fields)]


def by_length(submit: Submit) -> list[Event]:
    end = stopped(submit, 6)
    return [tokens(submit, "abcdef"), type(end)(**{**_fields(end), "outcome": Outcome.LENGTH})]


def by_abort(submit: Submit) -> list[Event]:
    end = aborted(submit, Reason.CLIENT_ABORT, Stage.DECODE, prompt_tokens=9, completion_tokens=4, cached_tokens=5)
    return [tokens(submit, "abcd"), end]


def _fields(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__dataclass_fields__}


ENDS: list[tuple[Script, str, str | None, str]] = [
    (ended(), "end_turn", None, "abcdef"),
    (ended(matched="def"), "stop_sequence", "def", "abc"),
    (by_length, "max_tokens", None, "abcdef"),
    (by_abort, "abort", None, "abcd"),
]


@pytest.mark.parametrize(("script", "reason", "sequence", "text"), ENDS, ids=[end[1] for end in ENDS])
def test_how_it_ended_is_told_alike_streamed_and_not(
    script: Script, reason: str, sequence: str | None, text: str
) -> None:
    """E1, E3, I2: an abort is no `end_turn`: its reply is not finished."""

    async def check() -> None:
        async with edge(script) as at:
            options = {"stop_sequences": ["def"], "rid": "r"}
            whole = await ask(at.client, **options).whole()
            stream = await ask(at.client, stream=True, **options).whole()
        assert (whole.status, stream.status) == (200, 200)
        message = whole.json()
        assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
        assert message["content"] == [{"type": "text", "text": text}]
        assert put_together(stream.events) == message
        assert stream.events[-1] == {"type": "message_stop"}
        assert at.worker.submits[0].sampling.stop == ("def",)

    run(check())


def test_usage_splits_the_prompt_into_cached_and_not() -> None:
    """E5: also after an abort."""

    async def check() -> None:
        async with edge(by_abort) as at:
            usage = (await ask(at.client).whole()).json()["usage"]
        assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (4, 5, 4)

    run(check())


def test_a_reply_without_text_has_no_blocks() -> None:
    """I1, N62: nothing was said, and nothing is made up."""

    async def check() -> None:
        async with edge(lambda submit: [tokens(submit, "x"), stopped(submit, 1, matched="x")]) as at:
            whole = await ask(at.client, stop_sequences=["x"], rid="r").whole()
            stream = await ask(at.client, stop_sequences=["x"], rid="r", stream=True).whole()
        assert whole.json()["content"] == []
        assert put_together(stream.events) == whole.json()

    run(check())


def test_a_stream_without_tokens_is_kept_alive_by_pings() -> None:
    """E3."""

    async def check() -> None:
        async with edge(keepalive_after_s=0.02) as at:
            call = ask(at.client, stream=True)
            await call.until('event: ping\ndata: {"type":"ping"}\n\nevent: ping')
            submit = at.worker.submits[0]
            at.worker.push(tokens(submit, "late"), stopped(submit, 4))
            await call.whole()
        assert put_together(call.events)["content"] == [{"type": "text", "text": "late"}]

    run(check())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "status", "kind"),
    [
        (Reason.QUEUE_FULL, 429, "rate_limit_error"),
        (Reason.WORKER_DRAINING, 503, "overloaded_error"),
        (Reason.DEADLINE, 503, "timeout_error"),
        (Reason.INTERNAL, 500, "api_error"),
        (Reason.TOO_LARGE, 400, "invalid_request_error"),
        (Reason.SESSION_UNKNOWN, 404, "not_found_error"),
    ],
)
def test_an_error_before_the_first_token_is_a_real_status(stream: bool, reason: Reason, status: int, kind: str) -> None:
    """E3, E4: the one error body, in Anthropic's envelope and with its types."""

    async def check() -> None:
        async with edge(lambda submit: [aborted(submit, reason)]) as at:
            call = await ask(at.client, stream=stream).whole()
        assert call.status == status
        body = call.json()
        assert body["type"] == "error"
        assert body["error"]["type"] == kind
        assert body["error"]["reason"] == reason.value
        assert body["request_id"] == body["error"]["request_id"] == call.headers["x-request-id"]
        assert call.headers["request-id"] == body["request_id"]

    run(check())


def test_an_error_after_the_first_token_is_an_event_and_the_end() -> None:
    """E3, E4."""

    async def check() -> None:
        async with edge() as at:
            call = ask(at.client, stream=True)
            await at.worker.submitted.wait()
            submit = at.worker.submits[0]
            at.worker.push(tokens(submit, "12345"))
            await call.until("12345")
            at.worker.push(aborted(submit, Reason.RUNNING_TIMEOUT, Stage.DECODE, completion_tokens=5))
            await call.whole()
        assert call.status == 200
        (name, error), (last, _) = named(call)[-2:]
        assert (name, last) == ("error", "message_stop")
        assert error["error"]["type"] == "timeout_error"
        assert error["error"]["partial"] == {"text": "12345", "completion_tokens": 5}

    run(check())


def test_refusals_of_the_gate_and_of_the_router_have_anthropics_envelope_too() -> None:
    """S13, E4: wherever an error comes from."""

    async def check() -> None:
        limits = {"acme": TenantLimits(requests_per_minute=1)}
        async with edge(says("x"), auth=keys(), tenants=limits, max_header_bytes=2048) as at:
            acme = Keyed(at.ingress, ACME)
            stranger = await ask(at.client, headers={"x-api-key": "rmk-nobody"}).whole()
            one_of_ours = await ask(at.client, headers={"x-api-key": ACME}).whole()
            limited = await ask(acme).whole()
            wrong_way = await acme.start("GET", "/v1/messages").whole()
            counted = await acme.start("POST", "/v1/messages/count_tokens", {}).whole()
            heavy = await ask(acme, headers={"x": "y" * 4000}).whole()
        assert one_of_ours.status == 200
        told = [(call.status, call.json()["type"], call.json()["error"]["type"]) for call in (stranger, limited)]
        assert told == [(401, "error", "authentication_error"), (429, "error", "rate_limit_error")]
        for call, status in ((wrong_way, 405), (counted, 400), (heavy, 431)):
            assert (call.status, call.json()["type"]) == (status, "error")
            assert call.headers["request-id"] == call.json()["request_id"]
            assert call.json()["error"]["type"] == "invalid_request_error"
        assert limited.headers["retry-after"]

    run(check())


def test_a_session_goes_on_with_what_is_new_only(tmp_path: Path) -> None:
    """P5, S14, K1: as in chat: body `session`; streamed and not it says which turn that was."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            first = await ask(at.client, session={"id": "s", "create": True}, max_tokens=6).whole()
            usage = first.json()["usage"]
            assert first.json()["session"]["turn"] == 1
            more = [{"role": "user", "content": "and?"}]
            again = await ask(at.client, more, session={"id": "s"}, stream=True).whole()
        message = put_together(again.events)
        assert message["session"] == {"id": "s", "turn": 2, "worker": "w1"}
        whole = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"]
        assert message["usage"]["cache_read_input_tokens"] in (whole, whole - 1)

    run(check())


def test_a_request_sent_again_is_replayed(tmp_path: Path) -> None:
    """T2: the same text and the same name, streamed or not."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            key = {"idempotency-key": "once"}
            first = (await ask(at.client, headers=key, max_tokens=6).whole()).json()
            second = put_together((await ask(at.client, headers=key, max_tokens=6, stream=True).whole()).events)
            other = await ask(at.client, headers=key, max_tokens=7).whole()
        assert second.pop("replayed") is True
        assert second == first
        assert first["id"] == "once"
        assert other.status == 422

    run(check())


def test_whole_and_stream_of_real_workers_are_one_text(tmp_path: Path) -> None:
    """I2, I3: with a system prompt, greedy and sampled."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            for temperature in (0, 1):
                options = {"temperature": temperature, "seed": 7, "system": "Be brief."}
                whole = (await ask(at.client, max_tokens=40, **options).whole()).json()
                stream = put_together((await ask(at.client, max_tokens=40, stream=True, **options).whole()).events)
                assert whole["content"] == stream["content"]
                assert whole["content"][0]["text"]
                assert whole["stop_reason"] == stream["stop_reason"]
                assert whole["usage"]["output_tokens"] == stream["usage"]["output_tokens"]

    run(check())


def test_affinity_comes_from_a_known_clients_header_or_the_opening() -> None:
    """P5: never a session."""

    async def check() -> None:
        async with edge(says("x"), workers=4) as at:
            for _ in range(3):
                await ask(at.client, headers={"x-claude-code-session-id": "abc"}).whole()
            homes = [name for name, worker in at.pool.workers.items() if worker.submits]
            assert len(homes) == 1
            for text in "abcdefgh":
                await ask(at.client, [{"role": "user", "content": text}]).whole()
            assert sum(bool(worker.submits) for worker in at.pool.workers.values()) > 1
            assert all(submit.turn is None for worker in at.pool.workers.values() for submit in worker.submits)

    run(check())


def test_tokens_are_counted_as_the_model_would_read_them() -> None:
    async def check() -> None:
        async with edge(says("x")) as at:
            body = {"system": "Be brief.", "messages": HELLO, "max_tokens": 5}
            counted = await at.client.post("/v1/messages/count_tokens", body)
            await ask(at.client, system="Be brief.").whole()
            assert counted.json() == {"input_tokens": len(at.worker.submits[0].input_ids)}
            refused = await at.client.post("/v1/messages/count_tokens", {"messages": HELLO, "session": {"id": "s"}})
            assert (refused.status, refused.json()["error"]["param"]) == (400, "session")
            assert len(at.worker.submits) == 1

    run(check())
