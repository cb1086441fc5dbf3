"""What goes first under pressure, what a slot may hold, and how many steps a request takes."""

from __future__ import annotations

import random

import pytest

from actors.messages import Outcome, Reason, SamplingParams, SessionMode
from actors.runner.script import ScriptRunner
from tests.engine.driver import Driver, expected

A, B, C = list(range(1, 11)), list(range(20, 27)), list(range(40, 45))


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(256), k=length)


def test_longest_idle_session_loses_its_pages_first(depth: int) -> None:
    """K4: LRU by session, counted from its last turn."""
    driver = Driver(depth=depth, page_size=4, kv_tokens=128, prefix_cache=False)
    for name in ("s0", "s1", "s2"):
        driver.open(name)
        driver.turn(f"{name}-1", prompt_of(1, 20), session_id=name)
        driver.run()
    driver.turn("s0-2", [1], session_id="s0", max_tokens=1)
    driver.run()
    driver.submit("big", prompt_of(9, 50), max_tokens=4)
    driver.run()
    resident = {name: driver.info(name).resident_tokens > 0 for name in ("s0", "s1", "s2")}
    assert resident == {"s0": True, "s1": False, "s2": True}


def test_prefix_pages_go_before_idle_sessions(depth: int) -> None:
    """K4: and the least recently used of them first."""
    driver = Driver(depth=depth, page_size=4, kv_tokens=128)
    driver.open()
    driver.turn("r1", prompt_of(1, 20))
    driver.run()
    for seed in (2, 3):
        driver.submit(f"p{seed}", prompt_of(seed, 32), max_tokens=1)
        driver.run()
    driver.submit("new", prompt_of(4, 40), max_tokens=4)
    driver.run()
    assert driver.engine.snapshot().evicted_slots == 0
    assert driver.info().resident_tokens == 27
    cached = []
    for seed in (3, 2):
        told = driver.submit(f"again{seed}", prompt_of(seed, 32), max_tokens=1)
        cached.append(told)
        driver.run()
    assert cached[0].end.cached_tokens > 0
    assert cached[1].end.cached_tokens < cached[0].end.cached_tokens


def test_turn_as_large_as_the_pool_takes_its_own_old_slot(depth: int) -> None:
    """K4, K5: a new root of a tree session that fits only without what the session holds of another branch."""
    driver = Driver(depth=depth, page_size=4, kv_tokens=64)
    driver.open(mode=SessionMode.TREE)
    first = driver.turn("r1", prompt_of(1, 30))
    driver.run()
    large = driver.turn("r2", prompt_of(2, 40), max_tokens=24, parent=None)
    driver.run()
    assert large.ids == expected(prompt_of(2, 40), 24)
    third = driver.turn("r3", [1], max_tokens=2, parent="r1")
    driver.run()
    assert third.ids == expected(prompt_of(1, 30) + first.ids + [1], 2)


def test_slot_of_a_dropped_turn_is_given_back(depth: int) -> None:
    """S3, K6: `replace` by a turn that computes nothing (max_tokens 0): no KV of what was dropped stays."""
    driver = Driver(depth=depth)
    driver.open(mode=SessionMode.TREE)
    driver.turn("r1", A)
    driver.run()
    driver.turn("r2", B, parent="r1")
    driver.run()
    told = driver.turn("r3", C, parent=None, replace=True, max_tokens=0)
    driver.run()
    assert (told.end.outcome, driver.info().turns) == (Outcome.LENGTH, 1)
    assert driver.engine.snapshot().pages.session_held == 0
    follow = driver.turn("r4", B, parent="r3")
    driver.run()
    assert follow.ids == expected(C + B, 8)


def test_no_step_is_planned_beyond_the_last_token(depth: int) -> None:
    """K6, I1: session case S22: with overlapped steps too, n tokens of a one-chunk prompt take n steps."""
    driver = Driver(depth=depth)
    for number, tokens in enumerate((1, 2, 5)):
        before = driver.engine.snapshot().steps
        driver.submit(f"r{number}", B, tokens)
        driver.run()
        assert driver.engine.snapshot().steps - before == tokens


def test_salt_of_one_tenant_is_not_the_name_of_another() -> None:
    """K3, S13: tenant `a` with salt `b` shares nothing with tenant `ab`."""
    driver = Driver()
    prompt = prompt_of(3, 40)
    driver.submit("one", prompt, tenant="a", cache_salt="b")
    driver.run()
    told = driver.submit("two", prompt, tenant="ab")
    driver.run()
    assert told.end.cached_tokens == 0


def test_flush_with_idle_sessions_costs_a_prefill_only(depth: int) -> None:
    """K4, S1: session case S20."""
    driver = Driver(depth=depth)
    firsts = []
    for n in range(4):
        driver.open(f"s{n}")
        firsts.append(driver.turn(f"t{n}", prompt_of(n, 12), session_id=f"s{n}"))
        driver.run()
    driver.engine.core.kv.flush()
    pages = driver.engine.snapshot().pages
    assert pages.free == pages.total
    for n, first in enumerate(firsts):
        again = driver.turn(f"u{n}", C, session_id=f"s{n}")
        driver.run()
        assert (again.end.cached_tokens, again.end.prompt_tokens) == (0, 12 + 8 + len(C))
        assert again.ids == expected(prompt_of(n, 12) + first.ids + C, 8)


def test_tree_and_streaming_session_say_the_same(depth: int) -> None:
    """S3, K1: session cases S01, S02: thirty turns."""
    driver = Driver(depth=depth, kv_tokens=4096)
    driver.open("ss")
    driver.open("ns", mode=SessionMode.TREE)
    last = 0
    for n in range(30):
        stream = driver.turn(f"a{n}", prompt_of(n, 4), session_id="ss", max_tokens=5)
        tree = driver.turn(f"b{n}", prompt_of(n, 4), session_id="ns", max_tokens=5)
        driver.run()
        assert stream.ids == tree.ids
        assert stream.end.cached_tokens == max(0, last - 1)
        last = stream.end.prompt_tokens + 5


def test_streaming_session_appends_to_its_last_turn_whatever_the_parent(depth: int) -> None:
    """S3: session case S05: the parent is always the last committed turn; another name is not looked at."""
    driver = Driver(depth=depth)
    driver.open()
    first = driver.turn("r1", A)
    driver.run()
    told = driver.turn("r2", B, parent="nonsense")
    driver.run()
    assert told.ids == expected(A + first.ids + B, 8)


def test_context_of_a_stopped_turn_holds_its_stop_token(depth: int) -> None:
    """S4: session case N17: EOS is part of the history."""
    driver = Driver(
        ScriptRunner(list(b"ab"), vocab_bytes=[bytes([i]) for i in range(128)] + [b""], eos_id=128), depth=depth
    )
    driver.open(mode=SessionMode.TREE)
    driver.turn("r1", [1, 2, 3])
    driver.run()
    second = driver.turn("r2", [4], parent="r1")
    driver.run()
    assert driver.store[("t", "s")].turns[0].output_ids == (*b"ab", 128)
    assert second.end.prompt_tokens == 3 + 3 + 1


def test_session_goes_on_after_a_running_timeout(depth: int) -> None:
    """C1, S2, A7: session case T06: from the last commit."""
    driver = Driver(depth=depth)
    driver.open()
    first = driver.turn("r1", A)
    driver.run()
    late = driver.turn("r2", B, 200, running_timeout_s=0.2)
    driver.run()
    assert (late.end.reason, 0 < len(late.ids) < 200) == (Reason.RUNNING_TIMEOUT, True)
    third = driver.turn("r3", C)
    driver.run()
    assert third.ids == expected(A + first.ids + C, 8)
    assert third.end.cached_tokens == len(A) + 7


def test_cancel_and_retry_storm(depth: int) -> None:
    """K6, A6: field case N23, engine's part: five long ones cancelled in mid-decode, and sent again beside new ones."""
    driver = Driver(depth=depth, page_size=4, kv_tokens=512, max_step_tokens=64)
    prompts = [prompt_of(n, 40) for n in range(5)]
    for round_number in range(8):
        for n, prompt in enumerate(prompts):
            driver.submit(f"a{round_number}-{n}", prompt, 60, rid=f"r{n}")
        for _ in range(4 + round_number):
            driver.step()
        driver.abort(rids=tuple(f"r{n}" for n in range(5)))
        again = [driver.submit(f"b{round_number}-{n}", prompt, 6, rid=f"r{n}") for n, prompt in enumerate(prompts)]
        fresh = [prompt_of(1000 + 3 * round_number + n, 100) for n in range(3)]
        new = [driver.submit(f"c{round_number}-{n}", prompt, 6) for n, prompt in enumerate(fresh)]
        driver.run()
        assert [told.ids for told in again] == [expected(prompt, 6) for prompt in prompts]
        assert [told.ids for told in new] == [expected(prompt, 6) for prompt in fresh]


def test_three_hundred_abandoned_requests_then_a_full_batch(depth: int) -> None:
    """A6, K6: field case N13, engine's part."""
    driver = Driver(depth=depth, page_size=16, kv_tokens=8 * 64, max_running=16, max_step_tokens=512)
    rng = random.Random(3)
    for n in range(300):
        driver.submit(f"a{n}", prompt_of(n, 20), 40)
        for _ in range(rng.randrange(6)):
            driver.step()
        driver.abort(keys=(f"a{n}",))
    told = [driver.submit(f"full{n}", prompt_of(n, 32), 32) for n in range(8)]
    for _ in range(4):
        driver.step()
    stats = driver.engine.snapshot()
    assert (stats.running, stats.waiting) == (8, 0)
    driver.run()
    assert driver.engine.snapshot().preemptions == 0
    assert [t.ids for t in told] == [expected(prompt_of(n, 32), 32) for n in range(8)]


def test_low_priority_is_answered_in_a_flood_of_high_priority(depth: int) -> None:
    """C1, K4: field case N39, engine's part: it times out when it should; after the flood the others go in order."""
    driver = Driver(depth=depth, max_running=1)
    driver.submit("run", A, 20)
    driver.step()
    low = [driver.submit(f"l{n}", B, 4, priority=-1, waiting_timeout_s=1.0 if n == 0 else None) for n in range(4)]
    number = 0
    while driver.now < 1.2:
        if driver.engine.snapshot().waiting < 6:
            driver.submit(f"high{number}", C, 4)
            number += 1
        driver.step()
        assert (low[0].end is not None) == (driver.now > 1.005)
    assert low[0].end.reason is Reason.WAITING_TIMEOUT
    order = []
    while any(told.end is None for told in low):
        driver.step()
        order += [n for n, told in enumerate(low) if told.ids and n not in order]
    assert order == [1, 2, 3]


def test_preempted_with_seed_stop_string_and_min_tokens(depth: int) -> None:
    """K4, I3, E5: field case N25, engine's part: tokens, their number and usage are those of a run without pressure."""
    sampling = SamplingParams(max_tokens=40, temperature=0.8, seed=7, stop=("zz", "q"), min_tokens=10)
    calm = Driver(depth=depth, page_size=4)
    want = calm.submit("a", prompt_of(1, 24), sampling=sampling)
    calm.run()
    driver = Driver(depth=depth, page_size=4, kv_tokens=96, max_running=3)
    driver.submit("b", prompt_of(2, 24), 40, priority=1)
    driver.step()
    told = driver.submit("a", prompt_of(1, 24), sampling=sampling)
    driver.run()
    assert driver.engine.snapshot().preemptions > 0
    assert told.ids == want.ids
    assert (told.end.outcome, told.end.matched, told.end.prompt_tokens) == (want.end.outcome, want.end.matched, 24)


def test_nothing_follows_the_end_while_two_steps_still_name_it() -> None:
    """E1, A3: no token after the end, and pages come back with the second of them."""
    driver = Driver(depth=1, prefix_cache=False)
    told = driver.submit("a", B, 50)
    driver.step()
    driver.launch()
    driver.launch()
    assert len(driver.launched) == 2
    driver.abort(rids=("a",))
    heard = list(told.ids)
    driver.commit()
    assert driver.engine.snapshot().pages.request_owned > 0
    driver.commit()
    assert (told.ids, driver.engine.snapshot().pages.request_owned) == (heard, 0)


def test_step_past_the_stop_is_dropped_while_the_store_is_slow() -> None:
    """S4, E7: the overlapped step commits before the store has the turn; its token enters neither."""
    runner = ScriptRunner(list(b"abcdef"), vocab_bytes=[bytes([i]) for i in range(128)] + [b""], eos_id=128)
    driver = Driver(runner, depth=1)
    driver.open()
    driver.hold_store = True
    told = driver.turn("r1", [1, 2, 3], sampling=SamplingParams(max_tokens=9, stop=("cd",)))
    driver.run()
    assert told.ids == list(b"abcd")
    driver.hold_store = False
    driver.answer_store()
    assert (told.end.completion_tokens, driver.info().tokens) == (4, 3 + 4)
    second = driver.turn("r2", [4], max_tokens=2)
    driver.run()
    assert second.end.prompt_tokens == 3 + 4 + 1


def test_turn_that_asks_for_more_than_its_session_may_hold_is_refused(depth: int) -> None:
    """S10: not cut short unseen; the largest that fits runs."""
    driver = Driver(depth=depth)
    driver.open(capacity_tokens=30)
    refused = driver.turn("r1", A, max_tokens=21)
    assert (refused.end.reason, refused.end.param) == (Reason.SESSION_CAPACITY, "session")
    told = driver.turn("r2", A, max_tokens=20)
    driver.run()
    assert told.ids == expected(A, 20)


def test_who_is_to_leave_the_batch_is_planned_no_more() -> None:
    """K4: its pages are wanted while a step in flight names it: it leaves when that one commits, in the midst of a page
    of its own."""
    driver = Driver(depth=1, page_size=16, kv_tokens=64, max_running=2)
    driver.submit("a", prompt_of(1, 14), max_tokens=40)
    driver.submit("b", prompt_of(2, 6), max_tokens=40)
    b = driver.engine.core.requests.by_key("b")
    for _ in range(40):
        driver.step()
        if b.preempt_wanted:
            break
    assert b.preempt_wanted
    assert b.planned % 16, "it was found in the midst of a page"
    plan = driver.launch()
    assert plan is not None
    assert b.uid not in {item.uid for item in plan.each()}
    driver.run()
    assert driver.engine.snapshot().preemptions > 0
    assert driver.told["b"].ids == expected(prompt_of(2, 6), 40)
