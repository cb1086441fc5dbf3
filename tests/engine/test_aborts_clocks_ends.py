"""Aborts in every stage, the clocks, closing, and ends that coincide."""

from __future__ import annotations

import pytest

from actors.engine.engine import Engine
from actors.engine.plan import StepResult
from actors.messages import IngressLost, Outcome, Reason, SamplingParams, Shutdown, Stage
from actors.runner.script import ScriptRunner
from tests.engine.driver import Driver, expected

A, B = list(range(1, 11)), list(range(20, 27))
LETTERS = [bytes([i]) for i in range(128)] + [b""]
EOS = 128


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


def at_rest(engine: Engine) -> bool:
    stats = engine.snapshot()
    return (stats.live, stats.running, stats.waiting, stats.pages.request_owned) == (0, 0, 0, 0)


# -- aborts ------------------------------------------------------------------------------------------------------------


def test_abort_swept_over_the_life_of_a_request(depth: int) -> None:
    """A3, A6, E1: field case N05, session case A01: it ends at once, stages never go back, pages are as before."""
    order = [Stage.WAITING, Stage.PREFILL, Stage.DECODE]
    driver = Driver(depth=depth, prefix_cache=False)
    free, last = driver.engine.snapshot().pages.free, 0
    for steps in range(14):
        told = driver.submit(f"a{steps}", range(70), max_tokens=50)
        for _ in range(steps):
            driver.step()
        report = driver.abort(rids=(f"a{steps}",))
        assert told.end.reason is Reason.CLIENT_ABORT
        assert order.index(report.hit[0].stage) >= last
        last = order.index(report.hit[0].stage)
        driver.run()
        assert driver.engine.snapshot().pages.free == free
    assert last == 2


def test_abort_is_exact_unless_a_prefix_is_asked_for(depth: int) -> None:
    """A1, A2: W11: job-1 never touches job-10."""
    driver = Driver(depth=depth)
    ten, eleven = driver.submit("job-10", A, 30), driver.submit("job-11", A, 30)
    one = driver.submit("job-1", A, 30)
    driver.step()
    assert [hit.rid for hit in driver.abort(rids=("job-1",)).hit] == ["job-1"]
    assert (one.end is not None, ten.end, eleven.end) == (True, None, None)
    assert {hit.rid for hit in driver.abort(rid_prefix="job-1").hit} == {"job-10", "job-11"}


def test_abort_is_idempotent_and_tells_what_it_hit(depth: int) -> None:
    """A4: field case N08, session case A05."""
    driver = Driver(depth=depth)
    first, second = driver.submit("r1", A, 30), driver.submit("r2", B, 30)
    for _ in range(4):
        driver.step()
    assert driver.abort(rids=("r1",)).hit[0].stage is Stage.DECODE
    assert driver.abort(rids=("r1",)).already_ended == ("r1",)
    assert driver.abort(rids=("never-seen",)).unknown == ("never-seen",)
    empty = driver.abort(rids=("",))
    assert (empty.hit, empty.unknown) == ((), ())
    driver.run()
    assert first.end.outcome is Outcome.ABORT
    assert second.ids == expected(B, 30)


def test_abort_that_overtakes_its_request_is_remembered(depth: int) -> None:
    """A5: W12: by attempt and by name; the request is answered without running, and once only."""
    driver = Driver(depth=depth)
    driver.abort(keys=("k1",))
    driver.abort(rids=("r2",))
    assert driver.submit("k1", A, rid="r1").end.reason is Reason.CLIENT_ABORT
    assert driver.submit("k2", A, rid="r2").end.reason is Reason.CLIENT_ABORT
    assert driver.engine.snapshot().steps == 0
    again = driver.submit("k3", A, rid="r2")
    driver.run()
    assert again.ids == expected(A, 8)


def test_an_abort_that_overtakes_a_batch_ends_each_part_once(depth: int) -> None:
    """A5, T2: sent again, the batch runs anew."""
    driver = Driver(depth=depth)
    driver.abort(rids=("x",))
    parts = [driver.submit(f"a{n}", A, rid=f"x_{n}", batch="x") for n in range(3)]
    assert [part.end.reason for part in parts if part.end] == [Reason.CLIENT_ABORT] * 3
    again = [driver.submit(f"b{n}", A, rid=f"x_{n}", batch="x") for n in range(3)]
    driver.run()
    assert [part.ids for part in again] == [expected(A, 8)] * 3


def test_tombstone_expires() -> None:
    """A5: with expiry."""
    driver = Driver(tombstone_s=5.0)
    driver.abort(rids=("r",))
    driver.tick(6.0)
    told = driver.submit("k", A, rid="r")
    driver.run()
    assert told.end.outcome is Outcome.LENGTH
    driver.tick(6.0)
    assert len(driver.engine.core.ended) == 0


def test_abort_by_session_without_a_victim_is_not_remembered(depth: int) -> None:
    """A4: field case N30."""
    driver = Driver(depth=depth)
    driver.open()
    assert driver.abort(session_id="s").hit == ()
    told = driver.turn("r1", A)
    driver.run()
    assert told.end.outcome is Outcome.LENGTH


def test_rid_can_be_used_again_at_once_after_its_abort(depth: int) -> None:
    """T2, E1: field case N09: a step in flight still names the first attempt; nothing of it reaches the second."""
    driver = Driver(depth=depth)
    for attempt in range(20):
        first = driver.submit(f"a{attempt}", A, 50, rid="x")
        for _ in range(attempt % 6 + 1):
            driver.step()
        driver.abort(rids=("x",))
        second = driver.submit(f"b{attempt}", B, 5, rid="x")
        driver.run()
        assert first.end.reason is Reason.CLIENT_ABORT
        assert second.ids == expected(B, 5)


def test_duplicate_rid_is_refused_while_the_first_lives(depth: int) -> None:
    """T2: field case N12, session case A19."""
    driver = Driver(depth=depth)
    first = driver.submit("a", A, 20, rid="dup")
    driver.step()
    assert driver.submit("b", A, 20, rid="dup").end.reason is Reason.SESSION_BUSY
    other_tenant = driver.submit("c", B, 20, rid="dup", tenant="u")
    driver.run()
    assert first.ids == expected(A, 20)
    assert other_tenant.ids == expected(B, 20)


def test_a_name_belongs_to_its_session(depth: int) -> None:
    """T2: field case N28 (e): one rid in two sessions and in a stateless call, at one instant, is three requests. An
    abort by that name means all of them (A2)."""
    driver = Driver(depth=depth)
    driver.open("s")
    driver.open("other")
    told = [
        driver.turn("k1", A, 20, rid="r"),
        driver.turn("k2", B, 20, rid="r", session_id="other"),
        driver.submit("k3", A, 20, rid="r"),
    ]
    driver.step()
    assert [t.end for t in told] == [None, None, None]
    assert driver.turn("k4", B, 20, rid="r").end.reason is Reason.SESSION_BUSY
    assert len(driver.abort(rids=("r",)).hit) == 3
    driver.run()
    again = driver.turn("k5", A, 4, rid="r")
    driver.run()
    assert again.ids == expected(A, 4)


def test_a_batch_ends_together_and_a_part_alone(depth: int) -> None:
    """A2: session cases A17, A18; field case N10: what else runs goes on."""
    driver = Driver(depth=depth)
    parts = [driver.submit(f"x_{n}", A, 30, batch="x") for n in range(11)]
    other = driver.submit("y_1", B, 30, batch="y")
    driver.step()
    assert len(driver.abort(rids=("x_1",)).hit) == 1
    assert [part.end is not None for part in parts] == [n == 1 for n in range(11)]
    report = driver.abort(rids=("x",))
    assert {hit.rid for hit in report.hit} == {f"x_{n}" for n in range(11) if n != 1}
    assert report.unknown == ()
    assert all(part.end.reason is Reason.CLIENT_ABORT for part in parts)
    assert driver.abort(rids=("x",)).already_ended == ("x",)
    driver.run()
    assert other.ids == expected(B, 30)


def test_a_request_may_have_the_name_of_a_batch(depth: int) -> None:
    """A2, T2: it is no repetition of a part, and an abort of the name means both."""
    driver = Driver(depth=depth)
    part = driver.submit("x_0", A, 30, batch="x")
    alone = driver.submit("x", A, 30)
    driver.step()
    assert alone.end is None
    assert {hit.rid for hit in driver.abort(rids=("x",)).hit} == {"x_0", "x"}
    assert part.end is not None


def test_an_abort_that_overtakes_a_batch_meets_every_part(depth: int) -> None:
    """A2, A5."""
    driver = Driver(depth=depth)
    assert driver.abort(rids=("x",)).unknown == ("x",)
    parts = [driver.submit(f"x_{n}", A, 30, batch="x") for n in range(3)]
    assert [part.end.reason for part in parts] == [Reason.CLIENT_ABORT] * 3


def test_dead_ingress_takes_its_requests_with_it(depth: int) -> None:
    """A1: field case N47; the session takes its next turn at once (A7)."""
    driver = Driver(depth=depth)
    driver.open()
    turn = driver.turn("r1", A, 50, ingress="dead")
    other = driver.submit("r2", B, ingress="alive")
    driver.step()
    driver.handle(IngressLost(ingress="dead"))
    assert turn.end.reason is Reason.CLIENT_DISCONNECT
    after = driver.turn("r3", B, ingress="alive")
    driver.run()
    assert (other.ids, after.ids) == (expected(B, 8), expected(B, 8))


def test_shutdown_ends_everything_and_refuses_more(depth: int) -> None:
    """E2: shutdown."""
    driver = Driver(depth=depth, max_running=1)
    told = [driver.submit(f"r{n}", A, 30) for n in range(3)]
    driver.step()
    driver.handle(Shutdown())
    assert {t.end.reason for t in told} == {Reason.SHUTDOWN}
    assert driver.submit("late", A).end.reason is Reason.SHUTDOWN
    driver.run()
    assert at_rest(driver.engine)


# -- clocks ------------------------------------------------------------------------------------------------------------


def test_waiting_request_expires_without_a_forward_pass(depth: int) -> None:
    """C1, C4: field case N35, session case T01."""
    driver = Driver(depth=depth, max_running=1, waiting_timeout_s=1.0)
    running = driver.submit("run", A, 300)
    told = [driver.submit(f"w{n}", A) for n in range(5)]
    while driver.now < 0.99:
        driver.step()
    assert [t.end for t in told] == [None] * 5
    while driver.now < 1.02:
        driver.step()
    assert {(t.end.reason, t.end.stage, t.end.completion_tokens) for t in told} == {
        (Reason.WAITING_TIMEOUT, Stage.WAITING, 0)
    }
    assert running.end is None
    assert driver.engine.snapshot().prompt_tokens == len(A)


def test_each_wave_runs_on_its_own_clock(depth: int) -> None:
    """C1, C4: session cases T02, T03: an expired running request ends within one step, with what it has."""
    driver = Driver(depth=depth)
    first = driver.submit("a", A, 400, running_timeout_s=1.0)
    while driver.now < 0.5:
        driver.step()
    second = driver.submit("b", B, 400, running_timeout_s=1.0)
    while driver.now < 1.04:
        driver.step()
    assert (first.end.reason, first.end.stage) == (Reason.RUNNING_TIMEOUT, Stage.DECODE)
    assert first.ids == expected(A, len(first.ids))
    assert second.end is None
    while driver.now < 1.6:
        driver.step()
    assert second.end.reason is Reason.RUNNING_TIMEOUT


def test_waiting_clock_is_not_restarted_by_preemption_and_running_goes_on(depth: int) -> None:
    """C1: W19: a preempted request no longer waits for its first forward; its running clock counts."""
    driver = Driver(depth=depth, page_size=4, kv_tokens=96, max_running=2, waiting_timeout_s=0.5)
    first = driver.submit("a", range(20), 60, running_timeout_s=30.0)
    driver.step()
    driver.submit("b", range(30, 50), 60, priority=1)
    driver.run()
    assert first.ids == expected(list(range(20)), 60)


@pytest.mark.parametrize("steps", [0, 2, 12])
def test_deadline_counts_in_every_stage(depth: int, steps: int) -> None:
    """C1: W18: field case N36, session case T12."""
    driver = Driver(depth=depth, max_running=1)
    if steps == 0:
        driver.submit("run", A, 300)
        driver.step()
    told = driver.submit("a", range(60), 300, deadline_s=1.0)
    for _ in range(steps):
        driver.step()
    driver.tick(1.0)
    expected_stage = {0: Stage.WAITING, 2: Stage.PREFILL, 12: Stage.DECODE}[steps]
    assert (told.end.reason, told.end.stage) == (Reason.DEADLINE, expected_stage)


def test_off_means_off(depth: int) -> None:
    """C2: session case T04: nothing times out unless asked to."""
    driver = Driver(depth=depth, max_running=1)
    driver.open()
    told = driver.turn("a", A, 300)
    waits = driver.submit("b", B)
    driver.step()
    driver.tick(1e9)
    assert (told.end, waits.end) == (None, None)
    assert driver.engine.next_deadline() is None


def test_server_maximum_bounds_what_a_request_may_ask(depth: int) -> None:
    """C1: up to the server's maximum, also when it asks for none."""
    driver = Driver(depth=depth, max_running_timeout_s=2.0)
    told = [driver.submit("a", A, 300, running_timeout_s=0.0), driver.submit("b", A, 300, running_timeout_s=9.0)]
    driver.step()
    driver.tick(2.1)
    assert {t.end.reason for t in told} == {Reason.RUNNING_TIMEOUT}


def test_first_reason_wins(depth: int) -> None:
    """E1: session case T14."""
    driver = Driver(depth=depth)
    told = driver.submit("a", A, 300, deadline_s=1.0)
    driver.step()
    driver.abort(rids=("a",))
    driver.tick(2.0)
    assert told.end.reason is Reason.CLIENT_ABORT


# -- sessions: idle clock and close ------------------------------------------------------------------------------------


def test_turn_longer_than_the_idle_timeout_keeps_its_session(depth: int) -> None:
    """S8: W8: session case B16: the idle clock starts when the turn ends, and a refused turn does not touch it."""
    driver = Driver(depth=depth)
    driver.open(idle_timeout_s=1.0)
    driver.turn("r1", A, 200)
    while driver.now < 1.5:
        driver.step()
    driver.run()
    ended = driver.now
    driver.tick(0.9)
    driver.turn("bad", [999])
    assert driver.info() is not None
    driver.tick(ended + 1.01 - driver.now)
    assert driver.info() is None
    assert driver.store == {}
    assert driver.engine.snapshot().pages.session_held == 0


def test_unused_session_expires(depth: int) -> None:
    """S8: session case B12."""
    driver = Driver(depth=depth)
    driver.open(idle_timeout_s=2.0)
    driver.tick(2.1)
    assert driver.info() is None


def test_graceful_close_lets_the_turn_end_and_refuses_new_ones(depth: int) -> None:
    """S9: session cases B08, B09: the answer comes after the memory is free, and says what was freed."""
    driver = Driver(depth=depth)
    driver.open()
    turn = driver.turn("r1", A, 20)
    driver.step()
    assert driver.close() is None
    assert driver.turn("r2", B).end.reason is Reason.SESSION_CLOSING
    assert not driver.close().known
    driver.run()
    assert turn.ids == expected(A, 20)
    closed = next(v for v in driver.replies.values() if getattr(v, "known", False))
    assert (closed.turns, closed.freed_tokens) == (1, 29)
    assert not driver.close().known


def test_aborting_close_ends_the_turn(depth: int) -> None:
    """S9: session cases B07, B11, field case N11: a late step of the old session never reaches the new one."""
    driver = Driver(depth=depth)
    driver.open()
    turn = driver.turn("r1", A, 50)
    for _ in range(5):
        driver.step()
    driver.close(abort_running=True)
    assert turn.end.reason is Reason.SESSION_CLOSED
    driver.run()
    driver.open()
    after = driver.turn("r2", B)
    driver.run()
    assert after.ids == expected(B, 8)
    assert after.end.prompt_tokens == len(B)
    assert driver.info().generation == 2


def test_close_of_an_unknown_session_says_so(depth: int) -> None:
    """S9: session case B06."""
    assert not Driver(depth=depth).close("nobody").known


# -- ends that coincide ------------------------------------------------------------------------------------------------


def scripted(script: bytes, **settings: object) -> Driver:
    return Driver(ScriptRunner(list(script), vocab_bytes=LETTERS, eos_id=EOS), **settings)


@pytest.mark.parametrize(
    ("script", "sampling", "outcome", "matched", "num"),
    [
        (b"abc", SamplingParams(max_tokens=4), Outcome.STOP, None, 4),
        (b"abcd", SamplingParams(max_tokens=4), Outcome.LENGTH, None, 4),
        (b"abcd", SamplingParams(max_tokens=9, stop=("bc",)), Outcome.STOP, "bc", 3),
        (b"abcd", SamplingParams(max_tokens=3, stop=("bc",)), Outcome.STOP, "bc", 3),
        (b"abcd", SamplingParams(max_tokens=9, stop_token_ids=(98,)), Outcome.STOP, None, 2),
        (b"abcd", SamplingParams(max_tokens=9, stop=("b",), stop_token_ids=(98,)), Outcome.STOP, "b", 2),
        (b"ab", SamplingParams(max_tokens=5, ignore_eos=True), Outcome.LENGTH, None, 5),
        (b"ab", SamplingParams(max_tokens=0), Outcome.LENGTH, None, 0),
    ],
)
def test_order_of_stops(
    script: bytes, sampling: SamplingParams, outcome: Outcome, matched: str | None, num: int, depth: int
) -> None:
    """E7, I2: session cases M01, M02, M03: stop string, then stop token and EOS, then length."""
    driver = scripted(script, depth=depth)
    told = driver.submit("a", [1, 2, 3], sampling=sampling)
    driver.run()
    assert (told.end.outcome, told.end.matched, told.end.completion_tokens) == (outcome, matched, num)
    assert at_rest(driver.engine)


def test_verdict_recorded_before_the_step_result_wins(depth: int) -> None:
    """E7: session case A11: the step in flight would have stopped it; the abort came first."""
    driver = scripted(b"", depth=depth)
    told = driver.submit("a", [1, 2, 3])
    driver.launch()
    driver.abort(rids=("a",))
    driver.run()
    assert (told.end.reason, told.ids) == (Reason.CLIENT_ABORT, [])


def test_history_holds_the_raw_stop_tokens_once(depth: int) -> None:
    """S4: session cases S22, S24: what runs past the stop in an overlapped step is not history."""
    driver = scripted(b"abcdef", depth=depth)
    driver.open()
    driver.turn("r1", [1, 2, 3], sampling=SamplingParams(max_tokens=9, stop=("cd",)))
    driver.run()
    second = driver.turn("r2", [4], max_tokens=2)
    driver.run()
    assert second.end.prompt_tokens == 3 + 4 + 1
    assert driver.store[("t", "s")].turns[0].output_ids == tuple(b"abcd")


def test_row_that_fails_ends_alone(depth: int) -> None:
    """E1, I1: field case N52: the others go on, and its session takes the next turn from the last commit."""
    runner = ScriptRunner(
        list(b"abcdef"),
        vocab_bytes=LETTERS,
        eos_id=EOS,
        fails=lambda uid, index: "NaN" if uid == 2 and index == 2 else None,
    )
    driver = Driver(runner, depth=depth)
    driver.open()
    others = [driver.submit("o1", [1], 6)]
    bad = driver.turn("bad", [2], 6)
    others.append(driver.submit("o2", [3], 6))
    driver.run()
    assert (bad.end.reason, bad.end.stage, bad.ids) == (Reason.INTERNAL, Stage.DECODE, list(b"ab"))
    assert [told.ids for told in others] == [list(b"abcdef")] * 2
    after = driver.turn("next", [4], 6)
    driver.run()
    assert after.end.prompt_tokens == 1


def test_step_that_breaks_ends_what_it_named_and_nothing_else(depth: int) -> None:
    """E1: the worker lives on."""
    driver = Driver(depth=0, max_running=1)
    told, waits = driver.submit("a", A), driver.submit("b", B)
    plan = driver.engine.plan(0.0)
    driver._hear(driver.engine.fail(plan, "boom", 0.0))
    assert told.end.reason is Reason.INTERNAL
    driver.run()
    assert waits.ids == expected(B, 8)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [260]}, "input_ids"),
        ({"prompt": [-1]}, "input_ids"),
        ({"prompt": [1], "sampling": SamplingParams(stop_token_ids=(260,), max_tokens=1)}, "stop_token_ids"),
        ({"prompt": [1], "sampling": SamplingParams(logit_bias=((260, 1.0),), max_tokens=1)}, "logit_bias"),
        ({"prompt": []}, "messages"),
    ],
)
def test_ids_out_of_range_are_refused_naming_the_field(fields: dict[str, object], param: str) -> None:
    """I1: field case N61."""
    driver = Driver()
    neighbour = driver.submit("n", A)
    told = driver.submit("a", **fields)
    assert (told.end.reason, told.end.param) == (Reason.INVALID, param)
    driver.run()
    assert neighbour.ids == expected(A, 8)


def test_full_queue_refuses_with_the_limit(depth: int) -> None:
    """E2: session case T16."""
    driver = Driver(depth=depth, max_running=1, max_waiting=2)
    told = [driver.submit(f"r{n}", A) for n in range(3)]
    assert told[2].end.reason is Reason.QUEUE_FULL
    driver.run()
    assert [t.ids for t in told[:2]] == [expected(A, 8)] * 2


def test_counters_add_up_to_requests_received(depth: int) -> None:
    """E6."""
    driver = Driver(depth=depth, max_waiting=3)
    for n in range(12):
        driver.submit(f"r{n}", A if n % 3 else [999])
        if n % 4 == 0:
            driver.abort(rids=(f"r{n}",))
    driver.run()
    stats = driver.engine.snapshot()
    assert stats.received == 12 == sum(count for *_, count in stats.ends)


def test_commits_out_of_order_are_a_bug() -> None:
    """The engine refuses to settle a plan that is not the oldest."""
    driver = Driver(depth=1)
    driver.submit("a", range(40))
    first, second = driver.engine.plan(0.0), driver.engine.plan(0.0)
    with pytest.raises(AssertionError, match="order"):
        driver.engine.commit(second, StepResult({}), 0.0)
    assert first.number < second.number


# -- fairness ----------------------------------------------------------------------------------------------------------


def test_short_prompt_is_not_stuck_behind_a_long_one(depth: int) -> None:
    """P7: field cases N02, N38: its first token comes at most two chunk-steps after it was sent; decodes never pause
    for longer than that."""
    driver = Driver(depth=depth, max_step_tokens=32, kv_tokens=8192, max_context=4096)
    decoding = driver.submit("d", A, 100)
    for _ in range(4):
        driver.step()
    long_ids = [n % 256 for n in range(2000)]
    long = driver.submit("long", long_ids, 2)
    for _ in range(5):
        driver.step()
    short = driver.submit("short", B, 4)
    seen = len(decoding.ids)
    for _ in range(2 + depth):
        driver.step()
    assert short.ids
    assert len(decoding.ids) >= seen + 2
    assert long.end is None
    driver.run()
    assert long.ids == expected(long_ids, 2)


def test_replies_wait_for_few_of_a_prompts_tokens(depth: int) -> None:
    """P7: a step without replies is filled with prompts; one with replies has so many of their tokens, whoever's."""
    driver = Driver(depth=depth, max_step_tokens=32, mixed_prefill_tokens=10, kv_tokens=1024)

    def shares_until(*names: str) -> list[int]:
        shares = []
        while not all(driver.told[name].ids for name in names):
            before = driver.engine.snapshot().prefill_tokens
            driver.step()
            shares.append(driver.engine.snapshot().prefill_tokens - before)
        return shares

    driver.submit("first", range(40), 50)
    assert max(shares_until("first")) == 32
    long = driver.submit("long", range(60, 120), 4)
    short = driver.submit("short", range(120, 124), 4)
    shares = shares_until("long", "short")
    assert (max(shares), sum(shares)) == (10, 64)
    driver.run()
    assert (long.ids, short.ids) == (expected(range(60, 120), 4), expected(range(120, 124), 4))


def test_higher_priority_goes_first() -> None:
    """K4: order of the queue is priority, then arrival."""
    driver = Driver(max_running=1)
    driver.submit("run", A)
    driver.step()
    low, high = driver.submit("low", A), driver.submit("high", B, priority=5)
    while low.end is None:
        assert not low.ids or high.end is not None
        driver.step()
