"""Prefix sharing, pressure and preemption (rules K1–K6)."""

from __future__ import annotations

import random

import pytest

from actors.engine.kv.keys import PrefixKeys, namespace_root
from actors.messages import Outcome, Reason, SamplingParams, SessionMode
from tests.engine.driver import Driver, expected


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(256), k=length)


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_cold_equals_warm(depth: int, page_size: int) -> None:
    """K3: field case N21: cached_tokens is the largest shared whole-page prefix, and never the whole prompt."""
    driver = Driver(depth=depth, page_size=page_size)
    prompt = prompt_of(1, 200)
    for attempt in range(3):
        told = driver.submit(f"p{attempt}", prompt)
        driver.run()
        assert told.ids == expected(prompt, 8)
        assert told.end.cached_tokens == (0 if attempt == 0 else 199 // page_size * page_size)
    for kept in (15, 16, 17, 63, 64, 65):
        variant = prompt[:kept] + prompt_of(kept, 40)
        told = driver.submit(f"k{kept}", variant)
        driver.run()
        assert told.ids == expected(variant, 8)
        assert told.end.cached_tokens == kept // page_size * page_size


def test_page_is_shared_only_after_the_step_that_filled_it_has_committed() -> None:
    """K3: a page of a step in flight is not in the index."""
    driver = Driver(depth=1, page_size=4, max_step_tokens=8)
    prompt = prompt_of(2, 8)
    root = namespace_root("t", "", shared=False)
    driver.submit("a", prompt)
    driver.launch()
    assert driver.engine.core.kv.begin(99, PrefixKeys(root, prompt, 4), None) == 0
    driver.engine.core.kv.release(99)
    driver.commit()
    assert driver.engine.core.kv.begin(99, PrefixKeys(root, prompt, 4), None) == 4
    driver.engine.core.kv.release(99)
    driver.run()


def test_prefixes_are_not_shared_across_tenants_or_salts(depth: int) -> None:
    """K3: the index is a namespace per tenant; cache_salt narrows further."""
    driver = Driver(depth=depth)
    prompt = prompt_of(3, 40)
    seen = []
    for number, fields in enumerate(
        [{}, {}, {"tenant": "other"}, {"cache_salt": "x"}, {"cache_salt": "x"}, {"tenant": "other", "cache_salt": "x"}]
    ):
        told = driver.submit(f"p{number}", prompt, **fields)
        driver.run()
        seen.append(told.end.cached_tokens)
    assert seen == [0, 36, 0, 0, 36, 0]


def test_tenants_share_when_configured() -> None:
    """K3: opt in."""
    driver = Driver(share_prefix_across_tenants=True)
    driver.submit("a", prompt_of(3, 40))
    driver.run()
    told = driver.submit("b", prompt_of(3, 40), tenant="other")
    driver.run()
    assert told.end.cached_tokens == 36


def test_preempted_requests_resume_with_the_same_tokens(depth: int) -> None:
    """K4, I3: a pool for two of six requests; every output equals its own REF."""
    driver = Driver(depth=depth, page_size=4, kv_tokens=160, max_running=6)
    prompts = {f"r{n}": prompt_of(n, 24) for n in range(6)}
    for name, prompt in prompts.items():
        driver.submit(name, prompt, max_tokens=40)
    driver.run()
    assert driver.engine.snapshot().preemptions > 0
    for name, prompt in prompts.items():
        told = driver.told[name]
        assert told.ids == expected(prompt, 40), name
        assert told.end.prompt_tokens == 24


def test_preemption_is_not_an_ending(depth: int) -> None:
    """K4: W6: session case S19: it touches neither history nor lease; aborted afterwards, nothing is left of it."""
    driver = Driver(depth=depth, page_size=4, kv_tokens=128, max_running=4)
    driver.open()
    first = driver.turn("r1", prompt_of(1, 12))
    driver.run()
    turn = driver.turn("r2", prompt_of(2, 12), max_tokens=60, priority=-1)
    for _ in range(6):
        driver.step()
    for n in range(3):
        driver.submit(f"p{n}", prompt_of(10 + n, 20), max_tokens=30)
    for _ in range(200):
        driver.step()
        (request,) = driver.engine.core.requests.by_rid("t", "r2")
        if request is not None and request.preemptions and request in driver.engine.core.requests.waiting():
            break
    else:
        pytest.fail("the turn was never preempted")
    assert driver.info().turns == 1
    assert driver.turn("r3", [1]).end.reason is Reason.SESSION_BUSY
    driver.abort(rids=("r2",))
    assert turn.end.reason is Reason.CLIENT_ABORT
    assert turn.end.stage.value == "preempted"
    fourth = driver.turn("r4", prompt_of(4, 6))
    driver.run()
    assert fourth.ids == expected(prompt_of(1, 12) + first.ids + prompt_of(4, 6), 8)


def test_idle_sessions_never_starve_other_requests(depth: int) -> None:
    """S10, K4: session case B18: more idle sessions than the pool holds; a request as large as the pool runs."""
    driver = Driver(depth=depth, page_size=4, kv_tokens=256)
    for n in range(30):
        driver.open(f"s{n}")
        driver.turn(f"t{n}", prompt_of(n, 20), session_id=f"s{n}")
        driver.run()
    told = driver.submit("big", prompt_of(99, 200), max_tokens=50)
    driver.run()
    assert told.ids == expected(prompt_of(99, 200), 50)
    assert driver.engine.snapshot().evicted_slots > 0
    again = driver.turn("again", [1, 2, 3], session_id="s0")
    driver.run()
    context = prompt_of(0, 20) + driver.told["t0"].ids + [1, 2, 3]
    assert again.ids == expected(context, 8)


def test_sixty_four_conversations_where_twelve_fit(depth: int) -> None:
    """K4, K6, S1: field case N22: random order, 16 at a time, one turn in ten aborted."""
    rng = random.Random(7)
    driver = Driver(depth=depth, page_size=4, kv_tokens=640, max_running=16, max_step_tokens=64)
    contexts: dict[str, list[int]] = {}
    for n in range(64):
        driver.open(f"s{n}")
        contexts[f"s{n}"] = []
    for round_number in range(12):
        chosen = rng.sample(sorted(contexts), 16)
        asked = {}
        for name in chosen:
            prompt = prompt_of(rng.randrange(10**6), rng.randrange(1, 8))
            key = f"{name}-{round_number}"
            asked[name] = (key, prompt, driver.turn(key, prompt, session_id=name, max_tokens=rng.randrange(1, 6)))
        for _ in range(3):
            driver.step()
        for name in rng.sample(chosen, 2):
            driver.abort(rids=(asked[name][0],))
        driver.run()
        for name, (_, prompt, told) in asked.items():
            assert told.ids == expected(contexts[name] + prompt, len(told.ids))
            if told.end.outcome is not Outcome.ABORT:
                assert told.end.prompt_tokens == len(contexts[name]) + len(prompt)
                assert told.end.cached_tokens <= len(contexts[name])
                contexts[name] = contexts[name] + prompt + told.ids


def test_request_that_can_never_fit_is_refused_on_arrival_with_the_numbers() -> None:
    """K5: over the pool, over the context."""
    driver = Driver(page_size=4, kv_tokens=64, max_context=512)
    refused = driver.submit("a", prompt_of(1, 40), max_tokens=40)
    assert refused.end.reason is Reason.TOO_LARGE
    assert "64" in refused.end.message
    fits = driver.submit("b", prompt_of(1, 40), max_tokens=24)
    driver.run()
    assert fits.ids == expected(prompt_of(1, 40), 24)


@pytest.mark.parametrize(("prompt", "max_tokens"), [(3, 1), (16, 1), (64, 1), (1, 200), (15, 1)])
def test_smallest_requests_leave_no_page(prompt: int, max_tokens: int, depth: int) -> None:
    """K6: field case N16: after flush everything is free."""
    driver = Driver(depth=depth, page_size=16, max_step_tokens=4)
    told = driver.submit("a", prompt_of(1, prompt), max_tokens=max_tokens)
    driver.run()
    assert told.ids == expected(prompt_of(1, prompt), max_tokens)
    driver.engine.core.kv.flush()
    pages = driver.engine.snapshot().pages
    assert pages.free == pages.total


def test_everything_is_free_after_closing_and_flushing(depth: int) -> None:
    """K6: at rest only the prefix index holds pages, and flush frees those."""
    driver = Driver(depth=depth)
    driver.open()
    driver.open("tree", mode=SessionMode.TREE)
    driver.turn("a", prompt_of(1, 30))
    driver.turn("b", prompt_of(2, 30), session_id="tree")
    driver.run()
    pages = driver.engine.snapshot().pages
    assert pages.request_owned == 0
    assert pages.session_held == 2 * (37 + 3) // 4
    driver.close()
    driver.close("tree")
    pages = driver.engine.snapshot().pages
    assert (pages.session_held, pages.request_owned) == (0, 0)
    driver.engine.core.kv.flush()
    pages = driver.engine.snapshot().pages
    assert pages.free == pages.total


def test_sampling_with_a_seed_survives_preemption(depth: int) -> None:
    """I3: the n-th token's randomness is named by (seed, n)."""
    from actors.runner.toy import toy_continuation

    driver = Driver(depth=depth, page_size=4, kv_tokens=160, max_running=6)
    sampling = SamplingParams(max_tokens=40, temperature=1.0, seed=7)
    for n in range(6):
        driver.submit(f"r{n}", prompt_of(n, 24), sampling=sampling)
    driver.run()
    assert driver.engine.snapshot().preemptions > 0
    for n in range(6):
        assert driver.told[f"r{n}"].ids == toy_continuation(prompt_of(n, 24), 40, seed=7, temperature=1.0)


def test_the_same_prompt_computed_side_by_side_is_held_once(depth: int) -> None:
    """K3: four requests that arrive together compute the same pages; afterwards they hold the same ones."""
    driver = Driver(depth=depth, page_size=4, max_step_tokens=160)
    prompt = prompt_of(5, 40)
    told = [driver.submit(f"r{n}", [*prompt, n], max_tokens=20) for n in range(4)]
    for _ in range(4 + depth):
        driver.step()
    owned = driver.engine.snapshot().pages.request_owned
    # Overlapped, the next step names the pages of the one before: what was computed twice stays until the end.
    assert owned <= (10 + 4 * 3 if depth == 0 else 4 * 13)
    driver.run()
    assert [t.ids for t in told] == [expected([*prompt, n], 20) for n in range(4)]


def test_every_prompt_token_is_cached_or_prefilled_once_and_the_rest_is_recomputed(depth: int) -> None:
    """K4, E5: the engine's part of field case N22: prefilled = sum of (P - cached), whatever was preempted, also in
    the middle of its prompt; what is computed again has a counter of its own."""
    driver = Driver(depth=depth, page_size=4, kv_tokens=160, max_running=6, max_step_tokens=6)
    for n in range(3):
        driver.submit(f"r{n}", prompt_of(n, 12), max_tokens=30, priority=1)
    driver.submit("long", prompt_of(9, 100), max_tokens=4)
    driver.run()
    stats = driver.engine.snapshot()
    assert stats.preemptions > 0
    assert stats.prefill_tokens == stats.prompt_tokens - stats.cached_tokens
    assert stats.recomputed_tokens > 0
