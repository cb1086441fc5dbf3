"""What a tenant may use, and what it is told when it wants more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.ingress.limits import Limiter
from actors.messages import Event, Reason, Stage, Submit
from configs import TenantLimits
from tests.ingress.asgi import Call, Client, eventually, run
from tests.ingress.harness import Edge, edge
from tests.ingress.keyed import ACME, ACME_TOO, GLOBEX, Keyed, keys
from tests.ingress.local import Cluster, cluster
from tests.ingress.scripted import aborted, nothing, says, stopped, tokens

NOW = 1000.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def limited(script: Any, clock: Clock | None = None, workers: int = 1, **limits: int) -> Any:
    """An edge where acme has limits, and nobody else."""
    tenants = {"acme": TenantLimits(**limits)}
    return edge(script, workers=workers, auth=keys(), tenants=tenants, clock=clock or Clock())


def acme(at: Edge) -> Keyed:
    return Keyed(at.ingress, ACME)


async def chat(client: Client, **fields: Any) -> Call:
    return await client.chat(**fields).whole()


def stand_still(at: Cluster) -> None:
    """Nothing is refilled while the test runs."""
    at.ingress.limiter = Limiter(at.ingress.keys.limits, at.ingress.metrics, Clock())


def refusals(at: Edge) -> dict[str, int]:
    found = at.ingress.metrics.limited.collect()[0].samples
    return {sample.labels["limit"]: int(sample.value) for sample in found if sample.name.endswith("_total")}


def test_requests_per_minute() -> None:
    """S10, S7, E3, E4: the third of two is refused at once, told when to come back, and let in then; not before."""
    clock = Clock()

    async def check() -> None:
        async with limited(says("hi"), clock, requests_per_minute=2) as at:
            first = await chat(acme(at))
            assert first.headers["x-ratelimit-limit-requests"] == "2"
            assert first.headers["x-ratelimit-remaining-requests"] == "1"
            assert first.headers["x-ratelimit-reset-requests"] == "30s"
            assert "x-ratelimit-limit-tokens" not in first.headers
            second = await chat(Keyed(at.ingress, ACME_TOO), stream=True)
            assert (second.status, second.headers["x-ratelimit-remaining-requests"]) == (200, "0")
            clock.now += 0.5
            refused = await chat(acme(at))
            error = refused.json()["error"]
            assert (refused.status, error["reason"], error["stage"]) == (429, "queue_full", "ingress")
            assert (error["type"], error["code"], error["retryable"]) == (
                "rate_limit_error",
                "rate_limit_exceeded",
                True,
            )
            assert refused.headers["retry-after"] == "30"
            assert refused.headers["x-should-retry"] == "true"
            assert refused.headers["x-ratelimit-remaining-requests"] == "0"
            assert refused.headers["x-ratelimit-reset-requests"] == "59.5s"
            assert (await chat(Keyed(at.ingress, GLOBEX))).status == 200
            clock.now += 29
            assert (await chat(acme(at))).headers["retry-after"] == "1"
            clock.now += 1
            assert (await chat(acme(at))).status == 200
            assert [submit.tenant for submit in at.worker.submits] == ["acme", "acme", "globex", "acme"]
            assert at.ends()["abort", "queue_full", "ingress"] == 2
            assert refusals(at) == {"requests": 2}

    run(check())


def test_tokens_per_minute_are_charged_afterwards() -> None:
    """S10: prompt and completion; what is over the budget is a debt, and the answer was not cut."""
    clock = Clock()

    def script(submit: Submit) -> list[Event]:
        return [tokens(submit, "x" * 150), stopped(submit, 150, cached_tokens=3)]

    async def check() -> None:
        async with limited(script, clock, tokens_per_minute=120) as at:
            first = await chat(acme(at), content="hello")
            assert (first.status, first.headers["x-ratelimit-remaining-tokens"]) == (200, "120")
            cost = first.json()["usage"]["total_tokens"]
            assert cost > 150
            debt = cost - 120
            refused = await chat(acme(at))
            assert (refused.status, refused.headers["x-ratelimit-remaining-tokens"]) == (429, "0")
            wait_s = int(refused.headers["retry-after"])
            assert wait_s == -(-(debt + 1) // 2)  # Two tokens a second, rounded up to whole seconds.
            clock.now += wait_s - 1
            assert (await chat(acme(at))).status == 429
            clock.now += 1
            assert (await chat(acme(at))).status == 200
            assert refusals(at) == {"tokens": 2}

    run(check())


def endings(reason: Reason, stage: Stage, **fields: Any) -> Any:
    return lambda submit: [aborted(submit, reason, stage, **fields)]


@pytest.mark.parametrize(
    ("script", "cost"),
    [
        (endings(Reason.QUEUE_FULL, Stage.WAITING, prompt_tokens=50), 0),
        (endings(Reason.WAITING_TIMEOUT, Stage.WAITING, prompt_tokens=50), 0),
        (endings(Reason.GRAMMAR_INVALID, Stage.GRAMMAR, prompt_tokens=50), 0),
        (endings(Reason.RUNNING_TIMEOUT, Stage.PREFILL, prompt_tokens=50), 50),
        (lambda submit: [tokens(submit, "abc"), aborted(submit, Reason.CLIENT_ABORT, Stage.DECODE, prompt_tokens=50,
                                                        completion_tokens=3)], 53),
        (lambda submit: [tokens(submit, "abc"), stopped(submit, 3, replayed=True)], 0),
    ],
)  # fmt: skip
def test_only_what_was_worked_on_is_charged(script: Any, cost: int) -> None:
    """S7: neither a refusal nor a stored answer costs tokens; a request that was ended half-way costs what it did."""

    async def check() -> None:
        async with limited(script, tokens_per_minute=1000) as at:
            await chat(acme(at))
            assert at.ingress.limiter.usage("acme").tokens.level(1000.0) == 1000 - cost
            assert at.ingress.limiter.usage("acme").open == 0

    run(check())


def test_concurrent_requests() -> None:
    """S10: one more than allowed is refused until one of them has ended, however that was."""

    async def check() -> None:
        async with limited(nothing, concurrent_requests=2) as at:
            calls = [acme(at).chat(), acme(at).chat(stream=True)]
            await eventually(lambda: len(at.worker.submits) == 2)
            refused = await chat(acme(at))
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["error"]["reason"] == "queue_full"
            assert refused.json()["error"]["message"].startswith("2 requests of this tenant are running")
            other = Keyed(at.ingress, GLOBEX).chat()
            await eventually(lambda: len(at.worker.submits) == 3)
            calls[0].disconnect()
            await calls[0].whole()
            await eventually(lambda: at.ingress.limiter.usage("acme").open == 1)
            calls.append(acme(at).chat())
            await eventually(lambda: len(at.worker.submits) == 4)
            for submit in at.worker.submits[1:]:
                at.worker.push(stopped(submit, 0))
            for call in (*calls[1:], other):
                assert (await call.whole()).status == 200
            assert at.ingress.limiter.usage("acme").open == 0
            assert refusals(at) == {"concurrent": 1}

    run(check())


def test_a_refusal_uses_up_nothing() -> None:
    """S7: over one limit, no other limit's budget shrinks; and the request is counted once."""

    async def check() -> None:
        async with limited(nothing, concurrent_requests=1, requests_per_minute=5, tokens_per_minute=100) as at:
            call = acme(at).chat()
            await eventually(lambda: len(at.worker.submits) == 1)
            for _ in range(20):
                refused = await chat(acme(at))
                assert (refused.status, refused.headers["x-ratelimit-remaining-requests"]) == (429, "4")
            assert at.ingress.limiter.usage("acme").open == 1
            call.disconnect()
            await call.whole()
            await eventually(lambda: sum(at.ends().values()) == 21)

    run(check())


def test_a_wrong_request_gives_its_place_back() -> None:
    async def check() -> None:
        async with limited(says("x"), concurrent_requests=1, requests_per_minute=10) as at:
            for body in (b"{", b"[]", b'{"messages": 5}', b'{"messages": [], "n": 2}'):
                call = await acme(at).start("POST", "/v1/chat/completions", body).whole()
                assert call.status == 400
                assert call.headers["x-ratelimit-limit-requests"] == "10"
            assert (await chat(acme(at))).status == 200

    run(check())


def test_over_the_limit_a_body_is_not_read() -> None:
    """I1: a tenant that sends megabytes too often does not make the server read them."""

    async def check() -> None:
        async with limited(says("x"), requests_per_minute=1) as at:
            assert (await chat(acme(at))).status == 200
            call = await acme(at).chat("x" * 20_000_000).whole()
            assert call.status == 429
            assert call.unread

    run(check())


def test_limits_without_keys_are_those_of_the_default_tenant() -> None:
    async def check() -> None:
        limits = {"*": TenantLimits(requests_per_minute=1)}
        async with edge(says("x"), tenants=limits, clock=Clock()) as at:
            assert [(await at.client.chat().whole()).status for _ in range(2)] == [200, 429]

    run(check())


def test_a_tenants_own_number_of_sessions_goes_to_the_pool() -> None:
    """S10: wherever a session is opened; the pool counts, since only it sees all ingresses."""

    async def check() -> None:
        async with limited(says("x"), sessions=3) as at:
            for client in (acme(at), Keyed(at.ingress, GLOBEX)):
                name = f"s{len(at.pool.sessions)}"
                await client.post("/v1/sessions", {"id": name})
                await client.chat(session={"id": f"{name}-chat", "create": True}).whole()
                await client.post(f"/v1/sessions/{name}/fork", {})
            assert at.pool.max_sessions == [3, 3, 3, None, None, None]

    run(check())


def test_a_client_that_leaves_pays_for_what_was_made(tmp_path: Path) -> None:
    """S10, E6: with a real worker, whose account of the end comes after the client is gone."""

    async def check() -> None:
        tenants = {"acme": TenantLimits(tokens_per_minute=10_000)}
        async with cluster(tmp_path, step_s=0.001, auth=keys(), tenants=tenants) as at:
            stand_still(at)
            call = Keyed(at.ingress, ACME).chat("hello", stream=True, max_tokens=4000)
            await call.until("delta")
            call.disconnect()
            await call.whole()
            usage = at.ingress.limiter.usage("acme")
            await eventually(lambda: usage.open == 0)
            counted = at.ingress.metrics.tokens
            told = sum(counted.labels(kind)._value.get() for kind in ("prompt", "completion"))
            assert 10_000 - usage.tokens.level(NOW) == told > len("user: hello\nassistant: ")

    run(check())


def test_a_client_that_stops_reading_pays_too(tmp_path: Path) -> None:
    """S10, A8: the worker had ended by the time the client was given up."""

    async def check() -> None:
        tenants = {"acme": TenantLimits(tokens_per_minute=10_000)}
        async with cluster(tmp_path, auth=keys(), tenants=tenants) as at:
            stand_still(at)
            call = Keyed(at.ingress, ACME).chat("hello", stream=True, max_tokens=50)
            call.stuck = True
            usage = at.ingress.limiter.usage("acme")
            await eventually(lambda: at.ingress.router.running and at.shell().stats()["live"] == 0)
            await eventually(lambda: all(one._line is not None and one._line.over for one in at.ingress.router.running))
            call.disconnect()
            await call.whole()
            assert usage.open == 0
            assert 10_000 - usage.tokens.level(NOW) == len("user: hello\nassistant: ") + 50

    run(check())


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_failing_request_cost_beside_its_failure_is_charged(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S10, E6: one of two replies fails; what the other was worked on is known when its worker says so."""

    async def check() -> None:
        async with limited(nothing, tokens_per_minute=1000) as at:
            monkeypatch.setattr(at.worker, "tell", at.worker.aborts.append)  # It takes its time.
            call = acme(at).chat(n=2, stream=stream)
            await eventually(lambda: len(at.worker.submits) == 2)
            first, second = at.worker.submits
            at.worker.push(aborted(second, Reason.RUNNING_TIMEOUT, Stage.DECODE, prompt_tokens=20))
            assert (await call.whole()).status == 503
            of = {"prompt_tokens": 20, "completion_tokens": 7}
            at.worker.push(tokens(first, "seven b"))
            at.worker.push(aborted(first, Reason.CLIENT_DISCONNECT, Stage.DECODE, **of))
            usage = at.ingress.limiter.usage("acme")
            await eventually(lambda: usage.tokens.level(NOW) == 1000 - 20 - 27)
            assert usage.open == 0
            assert at.ends() == {("abort", "running_timeout", "decode"): 1}
            assert [abort.keys for abort in at.worker.aborts] == [(first.key,)]

    run(check())
