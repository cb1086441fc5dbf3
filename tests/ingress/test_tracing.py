"""`traceparent`: read, answered, and passed on to the worker and to both logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.ingress.tracing import Span, span_of
from tests.ingress.asgi import run
from tests.ingress.harness import edge
from tests.ingress.local import cluster
from tests.ingress.scripted import says

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{PARENT}-01"


def span(given: str) -> Span | None:
    return span_of(given.encode(), lambda: "1" * 16)


@pytest.mark.parametrize("given", [GIVEN, f" {GIVEN}\t", f"cc-{TRACE}-{PARENT}-01", f"cc-{TRACE}-{PARENT}-01-more"])
def test_a_request_is_a_span_of_its_clients_trace(given: str) -> None:
    """A later version's beginning is read as this one."""
    made = Span(TRACE, PARENT, "1" * 16, "01")
    assert span(given) == made
    assert made.header == f"00-{TRACE}-{'1' * 16}-01"


@pytest.mark.parametrize(
    "given",
    [
        "",
        "00",
        f"ff-{TRACE}-{PARENT}-01",
        f"{GIVEN}-more",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        GIVEN.upper(),
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-1",
        f"{GIVEN}\n",
    ],
)
def test_what_is_not_valid_is_no_trace(given: str) -> None:
    """I1: as the specification has it."""
    assert span(given) is None


@given(st.binary(max_size=80))
def test_nothing_that_a_client_sends_does_harm(given: bytes) -> None:
    """I1: what is read is lower-case hexadecimal and nothing else."""
    found = span_of(given)
    assert found is None or all(character in "0123456789abcdef-" for character in found.header)


def test_it_goes_through_the_actors_to_both_logs(tmp_path: Path) -> None:
    """field case N04: each one's span is the parent of the next; every part of an answer is of the
    trace; the answer names it."""
    access, requests = tmp_path / "access", tmp_path / "requests"

    async def check() -> None:
        async with cluster(tmp_path, access_log=str(access), request_log=str(requests)) as at:
            call = await at.client.chat(headers={"traceparent": GIVEN}, n=2, max_tokens=2).whole()
            assert call.status == 200
            version, trace_id, span_id, flags = call.headers["traceparent"].split("-")
            assert (version, trace_id, flags) == ("00", TRACE, "01")
            (seen,) = (json.loads(line) for line in access.read_text().splitlines())
            assert (seen["trace_id"], seen["parent_id"], seen["span_id"]) == (TRACE, PARENT, span_id)
            rows = [json.loads(line) for line in requests.read_text().splitlines()]
            assert {(row["trace_id"], row["parent_id"], row["worker"]) for row in rows} == {(TRACE, span_id, "w1")}
            assert [row["completion_tokens"] for row in rows] == [2, 2]
            streamed = await at.client.chat(headers={"traceparent": GIVEN}, stream=True, max_tokens=2).whole()
            refused = await at.client.chat([], headers={"traceparent": GIVEN}).whole()
            assert {call.headers["traceparent"].split("-")[1] for call in (streamed, refused)} == {TRACE}
            assert refused.status == 400
            plain = await at.client.chat(max_tokens=2).whole()
            assert "traceparent" not in plain.headers
            assert "trace_id" not in json.loads(requests.read_text().splitlines()[-1])

    run(check(), 120.0)


def test_a_trace_that_is_not_valid_is_not_passed_on() -> None:
    """I1."""

    async def check() -> None:
        async with edge(says("x")) as at:
            call = await at.client.chat(headers={"traceparent": "00-nonsense"}).whole()
            assert call.status == 200
            assert "traceparent" not in call.headers
            assert at.worker.submits[-1].trace == ""

    run(check())
