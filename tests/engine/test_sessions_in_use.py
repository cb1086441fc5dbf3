"""Sessions as they are used: limits, floods, pools that are full, and what is left when all is over."""

from __future__ import annotations

import random

import pytest

from actors.messages import OnBusy, Outcome, Reason, SessionMode, Stage, TurnOf
from tests.engine.driver import Driver, expected

A, B, C = list(range(1, 11)), list(range(20, 27)), list(range(40, 45))


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(256), k=length)


def test_closed_session_takes_no_turn(depth: int) -> None:
    """S9, S14, T6: session case B05: a turn that still comes for it is told so; it opens none, none runs."""
    driver = Driver(depth=depth)
    driver.open()
    driver.turn("r1", A)
    driver.run()
    row = driver.store[("t", "s")]
    driver.close()
    assert driver.engine.snapshot().pages.session_held == 0
    of = TurnOf(session_id="s", generation=row.record.generation, epoch=1)
    late = driver.submit("r2", B, turn=of)
    assert (late.end.reason, late.end.stage) == (Reason.SESSION_UNKNOWN, Stage.ROUTING)
    assert driver.engine.snapshot().sessions == 0


@pytest.mark.parametrize("mode", list(SessionMode))
def test_long_turns_in_both_modes_keep_their_session(depth: int, mode: SessionMode) -> None:
    """S8: W8: session case B16: no orphan either: afterwards it expires."""
    driver = Driver(depth=depth)
    driver.open(mode=mode, idle_timeout_s=0.5)
    turn = driver.turn("r1", A, 100)
    driver.run()
    assert turn.ids == expected(A, 100)
    assert driver.info() is not None
    driver.tick(0.6)
    assert driver.info() is None
    assert driver.engine.snapshot().pages.session_held == 0


def test_hundreds_of_idle_sessions_expire_without_a_trace(depth: int) -> None:
    """S8, S10, K4: field case N17, engine's part: most were never used; all tables end empty."""
    driver = Driver(depth=depth, page_size=4, kv_tokens=512, prefix_cache=False)
    for n in range(400):
        driver.open(f"s{n}", idle_timeout_s=30.0)
        if n % 20 == 0:
            driver.turn(f"t{n}", prompt_of(n, 12), session_id=f"s{n}", max_tokens=2)
            driver.run()
    before = driver.engine.snapshot().steps
    told = driver.submit("plain", A, 4)
    driver.run()
    assert told.ids == expected(A, 4)
    assert driver.engine.snapshot().steps - before == 4
    driver.hold_store = True
    driver.tick(31.0)
    while driver.effects:
        driver.answer_store()
    stats = driver.engine.snapshot()
    assert (stats.sessions, stats.resident_sessions, stats.pages.free) == (0, 0, stats.pages.total)
    assert (driver.store, driver.engine.core.sessions.all()) == ({}, [])
    driver.tick(60.0)
    assert driver.engine.snapshot().clocks == 0


def test_gauges_of_sessions_go_back_to_zero(depth: int) -> None:
    """S11, K6: session case M10."""
    driver = Driver(depth=depth)
    names = ("a", "b", "c")
    for name in names:
        driver.open(name)
        driver.turn(f"t{name}", A, session_id=name)
    driver.run()
    stats = driver.engine.snapshot()
    assert (stats.sessions, stats.resident_sessions) == (3, 3)
    for name in names:
        driver.close(name)
    stats = driver.engine.snapshot()
    assert (stats.sessions, stats.resident_sessions, stats.pages.session_held) == (0, 0, 0)


def test_history_keeps_each_token_once(depth: int) -> None:
    """S1: session case N19: what is kept and stored grows with the turns' tokens, not with their square."""
    driver = Driver(depth=depth)
    driver.open(mode=SessionMode.TREE)
    for n in range(80):
        driver.turn(f"r{n}", prompt_of(n, 3), 2)
        driver.run()
    turns = driver.store[("t", "s")].turns
    assert sum(len(turn.input_ids) + len(turn.output_ids) for turn in turns) == driver.info().tokens == 400
    assert len(driver.engine.core.requests) == 0


def test_too_long_alone_and_only_after_restoring(depth: int) -> None:
    """S7, S10, K5: session case S16: eight rounds in four sessions beside plain traffic; nothing leaks."""
    driver = Driver(depth=depth, page_size=4, max_context=96, kv_tokens=1024)
    contexts = {f"s{n}": prompt_of(n, 40) for n in range(4)}
    for name, prompt in contexts.items():
        driver.open(name)
        told = driver.turn(f"{name}-0", prompt, 4, session_id=name)
        driver.run()
        contexts[name] = prompt + told.ids
    for round_number in range(8):
        for name, context in contexts.items():
            key = f"{name}-{round_number}"
            driver.submit(f"plain{key}", prompt_of(round_number, 30), 3)
            for kind, length in (("alone", 100), ("restored", 60)):
                refused = driver.turn(f"{kind}{key}", prompt_of(7, length), 4, session_id=name)
                assert (refused.end.reason, refused.end.stage) == (Reason.TOO_LARGE, Stage.ROUTING)
            told = driver.turn(f"fits{key}", [round_number], 2, session_id=name)
            driver.run()
            assert told.ids == expected([*context, round_number], 2)
            assert told.end.cached_tokens == len(context) - 1
            contexts[name] = [*context, round_number, *told.ids]
    for name in contexts:
        driver.close(name)
    driver.engine.core.kv.flush()
    pages = driver.engine.snapshot().pages
    assert pages.free == pages.total


def test_turn_refused_by_a_full_queue_leaves_its_session_free(depth: int) -> None:
    """S7, A7: session case S14: no lease is left behind; when there is room the next turn finds the KV."""
    driver = Driver(depth=depth, max_running=1, max_waiting=1)
    driver.open()
    first = driver.turn("r1", A)
    driver.run()
    driver.submit("run", C, 30)
    driver.step()
    waits = driver.submit("wait", C, 2)
    assert driver.turn("r2", B).end.reason is Reason.QUEUE_FULL
    assert driver.info().running_rid is None
    driver.abort(rids=("wait",))
    third = driver.turn("r3", C)
    driver.run()
    assert waits.end.outcome is Outcome.ABORT
    assert third.ids == expected(A + first.ids + C, 8)
    assert third.end.cached_tokens == len(A) + 7


def test_every_ending_carries_usage_reason_and_stage(depth: int) -> None:
    """E2, E5: session case M09: in the queue, in prefill and in decode; the prompt is the restored one."""
    driver = Driver(depth=depth, max_running=1, max_step_tokens=16)
    driver.open()
    driver.turn("r1", A)
    driver.run()
    seen = []
    for steps, prompt in ((0, B), (1, list(range(100, 160))), (6, B)):
        driver.submit(f"run{steps}", C, 300) if steps == 0 else None
        driver.step()
        told = driver.turn(f"r{steps}-2", prompt, 50)
        for _ in range(steps):
            driver.step()
        driver.abort(all=True)
        driver.run()
        assert told.end.prompt_tokens == 18 + len(prompt)
        assert told.end.completion_tokens == len(told.ids)
        assert told.end.cached_tokens == (0 if steps == 0 else 17)
        seen.append((told.end.reason, told.end.stage))
    assert seen == [(Reason.CLIENT_ABORT, stage) for stage in (Stage.WAITING, Stage.PREFILL, Stage.DECODE)]


def test_clocks_ring_at_their_instant_and_not_before(depth: int) -> None:
    """C3, C4: the engine names the next instant; it acts at that time, whatever steps do, on no clock of its own."""
    driver = Driver(depth=depth, max_running=1)
    running = driver.submit("a", A, 300, running_timeout_s=5.0)
    driver.step(dt=0.0)
    waits = driver.submit("b", B, waiting_timeout_s=2.0, deadline_s=3.0)
    assert driver.engine.next_deadline() == 2.0
    driver.tick(1.999)
    assert waits.end is None
    driver.tick(0.001)
    assert waits.end.reason is Reason.WAITING_TIMEOUT
    driver.tick(2.999)
    assert running.end is None
    driver.tick(0.001)
    assert running.end.reason is Reason.RUNNING_TIMEOUT
    driver.run()


def test_two_hundred_leave_at_once_while_others_end(depth: int) -> None:
    """A1, E1, E6: session case A20: aborts meet natural ends; every request ends once, and the books balance."""
    rng = random.Random(5)
    driver = Driver(depth=depth, max_running=32, max_step_tokens=256, kv_tokens=4096)
    told = [driver.submit(f"r{n}", prompt_of(n, rng.randrange(1, 12)), rng.randrange(1, 8)) for n in range(200)]
    for _ in range(6):
        driver.step()
    for n in rng.sample(range(200), 200):
        driver.abort(keys=(f"r{n}",))
        if n % 16 == 0:
            driver.step()
    driver.run()
    assert {t.end.outcome for t in told} == {Outcome.LENGTH, Outcome.ABORT}
    stats = driver.engine.snapshot()
    assert stats.received == 200 == sum(count for *_, count in stats.ends)
    assert (stats.pages.request_owned, stats.live, len(driver.engine.core.requests)) == (0, 0, 0)


def test_pool_pinned_at_its_limit(depth: int) -> None:
    """K4, I3: field case N24, engine's part: three times the pool is offered; it is full, and all texts are right."""
    driver = Driver(depth=depth, page_size=4, kv_tokens=320, max_running=16, max_step_tokens=64, prefix_cache=False)
    prompts = {f"r{n}": prompt_of(n, 16) for n in range(30)}
    for name, prompt in prompts.items():
        driver.submit(name, prompt, 30)
    fullest = 0
    while driver.step():
        fullest = max(fullest, driver.engine.snapshot().pages.request_owned)
    stats = driver.engine.snapshot()
    assert fullest >= 0.98 * stats.pages.total
    assert stats.preemptions > 0
    assert {reason for _, reason, _, _ in stats.ends} == {""}
    for name, prompt in prompts.items():
        assert driver.told[name].ids == expected(prompt, 30)


def test_newer_session_of_an_id_waits_for_the_former_to_be_gone(depth: int) -> None:
    """S9: session case B10: while the old one's turn still runs, a turn of the new one is refused, then let in."""
    driver = Driver(depth=depth)
    record = driver.open()
    old = driver.turn("r1", A, 20)
    driver.step()
    assert driver.close() is None
    newer = record.generation + 1
    assert driver.turn("r2", B, generation=newer).end.reason is Reason.SESSION_CLOSING
    driver.run()
    assert old.ids == expected(A, 20)
    driver.open()
    after = driver.turn("r3", B)
    driver.run()
    assert (after.ids, after.end.prompt_tokens) == (expected(B, 8), len(B))


def test_name_of_a_turn_that_did_not_commit_runs_anew(depth: int) -> None:
    """T2: field case N28, engine's part: aborted or refused before, or used in another session: it is not replayed."""
    driver = Driver(depth=depth)
    driver.open()
    driver.open("other")
    driver.turn("k1", A, 50, rid="aborted", digest=b"x")
    driver.step()
    assert driver.turn("k2", B, rid="refused", digest=b"y").end.reason is Reason.SESSION_BUSY
    assert driver.turn("k3", A, 50, rid="aborted", digest=b"x").end.reason is Reason.SESSION_BUSY
    driver.abort(rids=("aborted",))
    again = driver.turn("k4", A, rid="aborted", digest=b"x")
    driver.run()
    second = driver.turn("k5", B, rid="refused", digest=b"y")
    elsewhere = driver.turn("k6", C, rid="aborted", digest=b"z", session_id="other")
    driver.run()
    assert not again.end.replayed
    assert second.ids == expected(A + again.ids + B, 8)
    assert elsewhere.ids == expected(C, 8)


def test_everybody_gets_an_answer(depth: int) -> None:
    """E1, S10: field case N37, engine's part: eight seats, a queue of eight, two hundred requests at once."""
    driver = Driver(depth=depth, max_running=8, max_waiting=8)
    told = []
    for n in range(200):
        told.append(driver.submit(f"r{n}", A, 3))
        if n % 50 == 0:
            driver.step()
    driver.run()
    reasons = [t.end.reason for t in told]
    assert set(reasons) == {None, Reason.QUEUE_FULL}
    assert reasons.count(None) >= 16
    assert all(t.ids == expected(A, 3) for t in told if t.end.reason is None)


def test_a_session_that_is_being_read_lets_no_endless_queue_form() -> None:
    """S10: until its history is here nobody can be refused for being busy; the queue is limited all the same."""
    driver = Driver(max_queued_turns=2)
    driver.open()
    other = Driver(max_queued_turns=2)
    other.store = driver.store
    other.hold_store = True
    told = [other.turn(f"r{n}", [n + 1], on_busy=OnBusy.QUEUE) for n in range(6)]
    assert [t.end.reason if t.end else None for t in told] == [None] * 3 + [Reason.QUEUE_FULL] * 3
    other.hold_store = False
    other.answer_store()
    other.run()
    assert [t.end.outcome for t in told[:3]] == [Outcome.LENGTH] * 3
