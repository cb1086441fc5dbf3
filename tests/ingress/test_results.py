"""Requests without a session, exactly once (rule T2): claims and stored results, over real workers and a real store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.ingress import results, storing
from actors.records import StoreError
from tests.ingress.asgi import Call, eventually, run
from tests.ingress.local import Cluster, cluster
from tests.ingress.test_with_workers import reply, text_of

ASKED = "user: one\nassistant: "


def ask(at: Cluster, content: str = "one", key: str = "k", **fields: Any) -> Call:
    return at.client.chat(content, temperature=0, headers={"idempotency-key": key}, **{"max_tokens": 8, **fields})


def made(at: Cluster) -> int:
    return sum(int(worker.shell.stats()["output_tokens"]) for worker in at.pool.workers.values())  # type: ignore[call-overload]


@pytest.mark.parametrize("streams", [(False, False), (True, False), (False, True)])
def test_a_repeated_request_is_answered_with_its_stored_result(tmp_path: Path, streams: tuple[bool, bool]) -> None:
    """T2, E5: streamed or not, on whatever worker: the same text and usage, marked, and computed once."""

    async def check() -> None:
        async with cluster(tmp_path, workers=2) as at:
            first, second = [await ask(at, stream=stream).whole() for stream in streams]
            texts = [
                call.text if stream else text_of(call) for call, stream in zip((first, second), streams, strict=True)
            ]
            assert texts == [reply(ASKED, 8)] * 2
            assert made(at) == 8
            if not any(streams):
                assert second.json()["replayed"]
                assert second.json()["usage"]["completion_tokens"] == 8

    run(check())


def test_another_body_under_the_same_key_is_422(tmp_path: Path) -> None:
    """T2: and changes nothing."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            await ask(at).whole()
            other = await ask(at, "another").whole()
            assert (other.status, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
            assert (await ask(at).whole()).json()["replayed"]

    run(check())


@pytest.mark.parametrize("workers", [1, 3])
def test_a_running_one_is_joined_where_it_runs_or_refused(tmp_path: Path, workers: int) -> None:
    """T2: field case N28 (c): also where placement would have chosen another worker."""

    async def check() -> None:
        async with cluster(tmp_path, workers=workers, step_s=0.01) as at:
            first = ask(at, stream=True, max_tokens=60, prompt_cache_key="a")
            await eventually(lambda: made(at) > 5)
            joined = [ask(at, max_tokens=60, prompt_cache_key="a", on_duplicate="join") for _ in range(3)]
            refused = await ask(at, max_tokens=60, prompt_cache_key="a").whole()
            assert (refused.status, refused.json()["error"]["reason"]) == (409, "session_busy")
            for call in (first, *joined):
                await call.whole()
            assert {first.text, *(text_of(call) for call in joined)} == {reply(ASKED, 60)}
            assert made(at) == 60

    run(check())


def test_an_aborted_or_refused_request_runs_anew(tmp_path: Path) -> None:
    """T2: field case N28 (b), (d): neither is a stored result."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.01) as at:
            left = ask(at, stream=True, max_tokens=500)
            await eventually(lambda: made(at) > 3)
            left.disconnect()
            await eventually(lambda: at.shell().stats()["live"] == 0)
            refused = await ask(at, max_tokens=10**9).whole()
            assert refused.status == 400
            again = await ask(at).whole()
            assert text_of(again) == reply(ASKED, 8)
            assert "replayed" not in again.json()

    run(check())


def test_a_lost_worker_does_not_hold_its_keys(tmp_path: Path) -> None:
    """T2, T4: the request goes on elsewhere under a claim of its own, and its result is kept once."""

    async def check() -> None:
        async with cluster(tmp_path, workers=2, step_s=0.01) as at:
            call = ask(at, max_tokens=60)
            await eventually(lambda: made(at) > 5)
            (busy,) = (name for name in ("w1", "w2") if at.shell(name).stats()["running"])
            await asyncio.to_thread(at.pool.workers[busy].kill)
            assert text_of(await call.whole()) == reply(ASKED, 60)
            assert (await ask(at, max_tokens=60).whole()).json()["replayed"]

    run(check())


def test_a_claim_of_a_dead_ingress_lapses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T2: and one that is renewed does not."""
    monkeypatch.setattr(storing, "RENEW_S", 0.02)

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.01) as at:
            at.pool.lease_s = 0.3
            await at.pool.claim_result("default", "dead", digest=b"", owner="w1 gone")
            slow = ask(at, max_tokens=80)
            await asyncio.sleep(0.5)
            assert (await ask(at, max_tokens=80).whole()).status == 409
            await slow.whole()
            assert (await ask(at, key="dead").whole()).status == 200

    run(check())


def test_an_expired_result_says_so(tmp_path: Path) -> None:
    """T2."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            at.pool.result_ttl_s = 0.2
            await ask(at).whole()
            await asyncio.sleep(0.25)
            late = await ask(at).whole()
            assert (late.status, late.json()["error"]["code"]) == (400, "idempotency_key_expired")

    run(check())


def test_a_store_that_fails_is_told_before_and_harmless_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T2, E4: nothing runs that may have run before; an answer that was made is given."""

    async def check() -> None:
        async with cluster(tmp_path) as at:

            async def fails(*_: Any, **__: Any) -> Any:
                raise StoreError("disk full")

            monkeypatch.setattr(at.pool, "put_result", fails)
            assert text_of(await ask(at).whole()) == reply(ASKED, 8)
            monkeypatch.setattr(at.pool, "claim_result", fails)
            refused = await ask(at, key="other").whole()
            assert (refused.status, refused.json()["error"]["retryable"]) == (500, True)
            assert made(at) == 8

    run(check())


def test_a_result_is_offered_again_to_a_store_that_was_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T2: the answer does not wait for long; until the result is stored, the key is taken; then it is told again."""
    monkeypatch.setattr(results, "STORE_WAIT_S", 0.02)
    monkeypatch.setattr(storing, "STORE_PAUSE_S", 0.01)

    async def check() -> None:
        async with cluster(tmp_path) as at:
            stores, back, stored = at.pool.put_result, asyncio.Event(), asyncio.Event()

            async def away(*args: Any, **options: Any) -> Any:
                if not back.is_set():
                    raise StoreError("the pool is away")
                await stores(*args, **options)
                stored.set()

            monkeypatch.setattr(at.pool, "put_result", away)
            assert text_of(await ask(at).whole()) == reply(ASKED, 8)
            assert (await ask(at).whole()).status == 409
            back.set()
            await asyncio.wait_for(stored.wait(), 60)
            assert (await ask(at).whole()).json()["replayed"]
            assert made(at) == 8

    run(check())


def test_who_joined_a_request_keeps_its_result_for_an_ingress_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2: what one caller was told is told again, though the claim is still that of an ingress that is no more."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.01) as at:
            first = ask(at, max_tokens=60)
            await eventually(lambda: made(at) > 5)
            joined = ask(at, max_tokens=60, on_duplicate="join")
            await eventually(lambda: at.ingress.router.channels.open_lines() == {"w1": 2})
            monkeypatch.setattr(results.Keeper, "drop", lambda keeper: None)  # As the dead do nothing.
            first.disconnect()
            assert text_of(await joined.whole()) == reply(ASKED, 60)
            assert (await ask(at, max_tokens=60).whole()).json()["replayed"]
            assert made(at) == 60

    run(check())
