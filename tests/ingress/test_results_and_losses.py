"""Claims and stored results where a worker, who asked first, or the pool is lost on the way (rules T2, T4)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.ingress import storing
from actors.ingress.results import _pack
from actors.messages import Finished, Outcome
from actors.records import ClaimStatus, ResultClaim, ResultRecord, ResultState
from tests.ingress.asgi import eventually, run
from tests.ingress.harness import edge
from tests.ingress.local import cluster
from tests.ingress.scripted import says, tokens
from tests.ingress.test_results import ASKED, ask, made
from tests.ingress.test_with_workers import reply, text_of

NAMED = {"headers": {"idempotency-key": "k"}}


def found(status: ClaimStatus, owner: str, text: str = "") -> ResultClaim:
    end = Finished(ingress="", key="", outcome=Outcome.STOP)
    body = _pack(end, tuple(text.encode())) if text else b""
    state = ResultState.DONE if text else ResultState.RUNNING
    record = ResultRecord(state=state, digest=b"", owner=owner, until=0.0, body=body)
    return ResultClaim(status=status, record=record)


@pytest.mark.parametrize("stream", [True, False])
def test_a_joiner_that_loses_its_worker_gets_the_rest_of_the_stored_result(stream: bool) -> None:
    """T2, I2: it was told a part of it already: the text is not told twice."""

    async def check() -> None:
        async with edge(workers=2) as at:
            answers = [found(ClaimStatus.RUNNING, "w1 first"), found(ClaimStatus.DONE, "w1 first", "partial")]

            async def claim(*_: Any, **__: Any) -> ResultClaim:
                return answers.pop(0)

            at.pool.claim_result = claim  # type: ignore[method-assign]
            call = at.client.chat(stream=stream, on_duplicate="join", on_worker_lost="resume", **NAMED)
            await at.worker.submitted.wait()
            at.worker.push(tokens(at.worker.submits[0], "par"))
            await asyncio.sleep(0.05)
            at.worker.die()
            await call.whole()
            assert (call.text if stream else text_of(call)) == "partial"

    run(check())


def test_a_request_that_lost_its_worker_joins_who_was_faster() -> None:
    """T4, T2: its claim is free for a moment; that another attempt takes it then is not its caller's business."""

    async def check() -> None:
        async with edge(workers=2) as at:
            answers = [found(ClaimStatus.CLAIMED, "w1 first"), found(ClaimStatus.RUNNING, "w2 other")]

            async def claim(*_: Any, **__: Any) -> ResultClaim:
                return answers.pop(0)

            at.pool.claim_result = claim  # type: ignore[method-assign]
            at.pool.workers["w2"].script = says("joined")
            call = at.client.chat(**NAMED)
            await at.worker.submitted.wait()
            at.worker.die()
            await call.whole()
            assert (call.status, text_of(call)) == (200, "joined")
            (second,) = at.pool.workers["w2"].submits
            assert (second.join, second.only_join) == (True, True)

    run(check())


def test_a_result_is_stored_also_when_who_asked_first_has_left(tmp_path: Path) -> None:
    """T2, A1: the request goes on for who joined, and so does its name."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.01) as at:
            first = ask(at, stream=True, max_tokens=60)
            await eventually(lambda: made(at) > 5)
            joined = ask(at, max_tokens=60, on_duplicate="join")
            await eventually(lambda: at.shell().stats()["live"] == 2)
            first.disconnect()
            assert text_of(await joined.whole()) == reply(ASKED, 60)
            assert (await ask(at, max_tokens=60).whole()).json()["replayed"]
            assert made(at) == 60

    run(check())


def test_a_pool_that_says_nothing_holds_no_request_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """T2, E4: calls to a pool that restarts wait until it is back, if ever."""
    monkeypatch.setattr(storing, "ANSWER_S", 0.05)

    async def check() -> None:
        async with edge(says("x")) as at:

            async def silent(*_: Any, **__: Any) -> Any:
                await asyncio.Event().wait()

            at.pool.release_result = silent  # type: ignore[method-assign]
            at.pool.claim_result = silent  # type: ignore[method-assign]
            refused = await at.client.chat(**NAMED).whole()
            assert (refused.status, refused.json()["error"]["retryable"]) == (500, True)

    run(check())


def test_the_same_request_sent_again_draws_the_same_tokens() -> None:
    """T2, T4, I3: two attempts of one name may each go on where the other has been; other requests draw their own."""

    async def check() -> None:
        async with edge(says("x")) as at:
            for key in ("a", "a", "b", None, None):
                headers = {} if key is None else {"idempotency-key": key}
                assert (await at.client.chat(headers=headers).whole()).status == 200
            assert (await at.client.chat("else", headers={"idempotency-key": "a"}).whole()).status == 200
            seeds = [submit.sampling.seed for submit in at.worker.submits]
            assert seeds[0] == seeds[1]
            assert len(set(seeds)) == 5
            assert all(0 <= seed < 2**63 for seed in seeds)

    run(check())


def test_a_stored_result_does_not_go_on_with_another_text() -> None:
    """I2, T4: better an error than the beginning of one text and the end of another."""

    async def check() -> None:
        async with edge(workers=2) as at:
            answers = [found(ClaimStatus.RUNNING, "w1 first"), found(ClaimStatus.DONE, "w1 first", "whole")]

            async def claim(*_: Any, **__: Any) -> ResultClaim:
                return answers.pop(0)

            at.pool.claim_result = claim  # type: ignore[method-assign]
            call = at.client.chat(stream=True, on_duplicate="join", on_worker_lost="resume", **NAMED)
            await at.worker.submitted.wait()
            at.worker.push(tokens(at.worker.submits[0], "par"))
            await call.until("par")
            at.worker.die()
            await call.whole()
            assert call.text == "par"
            assert b"worker_lost" in call.body

    run(check())
