"""Faults that systems of this kind have had, each as a test that fails where the fault is.

W numbers are those of a published list of weaknesses; "of the five" are the faults of sessions that one fix removed:
history taken away while a turn runs, a refused turn that overwrites the slot, an abort that saves too great a length,
a first turn whose abort leaves a slot behind, two turns at once.
"""

from __future__ import annotations

import pytest

from actors.engine.effects import GrammarReady
from actors.engine.request import RequestState
from actors.messages import Abort, Grammar, GrammarKind, OnBusy, Outcome, Reason, SessionMode, Shutdown, Stage
from tests.engine.driver import Driver, Told, expected

A, B, C = list(range(1, 11)), list(range(20, 27)), list(range(40, 45))


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


def with_one_turn(driver: Driver) -> Told:
    driver.open()
    first = driver.turn("r1", A)
    driver.run()
    return first


def steps(driver: Driver, number: int) -> None:
    for _ in range(number):
        driver.step()


# -- the five ----------------------------------------------------------------------------------------------------------


def test_history_is_there_while_a_turn_runs_and_close_sees_the_turn(depth: int) -> None:
    """S2, S9: first of the five."""
    driver = Driver(depth=depth)
    first = with_one_turn(driver)
    running = driver.turn("r2", B, max_tokens=20)
    steps(driver, 3)
    assert driver.info().turns == 1
    assert driver.close() is None
    driver.run()
    assert running.ids == expected(A + first.ids + B, 20)


@pytest.mark.parametrize("wrong", [{"offset": 3}, {"prompt": [999]}, {"max_tokens": 10**6}, {"create": True}])
def test_refused_turn_leaves_the_slot_alone(depth: int, wrong: dict) -> None:
    """S7, K2: second of the five: page counts and the next turn's cached tokens are as if it had never come."""
    driver = Driver(depth=depth)
    first = with_one_turn(driver)
    before = driver.engine.snapshot().pages
    assert driver.turn("bad", **{"prompt": B, **wrong}).end.outcome is Outcome.ABORT
    assert driver.engine.snapshot().pages == before
    third = driver.turn("r3", C)
    driver.run()
    assert (third.end.cached_tokens, third.ids) == (len(A) + 7, expected(A + first.ids + C, 8))


@pytest.mark.parametrize("after", range(1, 9))
def test_abort_of_a_later_turn_saves_no_length(depth: int, after: int) -> None:
    """K2, A7: third of the five: session cases S09, S15: whenever it comes, the slot's length is the committed one."""
    driver = Driver(depth=depth, page_size=4, max_step_tokens=8)
    first = with_one_turn(driver)
    driver.turn("r2", list(range(50, 90)), max_tokens=50)
    steps(driver, after)
    driver.abort(rids=("r2",))
    driver.run()
    assert driver.info().resident_tokens == len(A) + 7
    third = driver.turn("r3", C)
    driver.run()
    assert (third.end.cached_tokens, third.ids) == (len(A) + 7, expected(A + first.ids + C, 8))


@pytest.mark.parametrize("after", range(5))
def test_abort_of_the_first_turn_leaves_no_slot(depth: int, after: int) -> None:
    """S2, K2: fourth of the five: session case S10."""
    driver = Driver(depth=depth, prefix_cache=False)
    driver.open()
    driver.turn("r1", list(range(50, 90)), max_tokens=50)
    steps(driver, after)
    driver.abort(rids=("r1",))
    driver.run()
    stats = driver.engine.snapshot()
    assert (stats.resident_sessions, stats.pages.free) == (0, stats.pages.total)
    assert driver.info().resident_tokens == 0


def test_refusal_of_one_turn_lets_no_third_in(depth: int) -> None:
    """S5, S7: W5: fifth of the five: the refused turn was not the owner; a third one is refused as well."""
    driver = Driver(depth=depth)
    with_one_turn(driver)
    driver.turn("r2", B, max_tokens=30)
    driver.step()
    lease = driver.engine.core.sessions.find("t", "s").lease
    for name in ("r3", "r4"):
        assert driver.turn(name, C).end.reason is Reason.SESSION_BUSY
        assert driver.engine.core.sessions.find("t", "s").lease is lease
    assert driver.engine.snapshot().running == 1


# -- turns that never ran ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [0, 1])
@pytest.mark.parametrize("end", ["abort", "waiting_timeout", "deadline", "disconnect"])
def test_turn_that_never_ran_leaves_nothing(depth: int, committed: int, end: str) -> None:
    """S2, C4: W7: session cases S11, S12, S13, A03: it ends in the queue; the next one is let in at once."""
    driver = Driver(depth=depth, max_running=1)
    history = A + with_one_turn(driver).ids if committed else []
    if not committed:
        driver.open()
    driver.submit("long", range(150, 160), 200)
    driver.step()
    prompt_tokens = driver.engine.snapshot().prompt_tokens
    limits = {"waiting_timeout": {"waiting_timeout_s": 1.0}, "deadline": {"deadline_s": 1.0}}.get(end, {})
    queued = driver.turn("r2", B, **limits)
    if end == "abort":
        driver.abort(rids=("r2",))
    elif end == "disconnect":
        driver.handle(Abort(keys=("r2",), tenant="t", reason=Reason.CLIENT_DISCONNECT))
    else:
        driver.tick(1.0)
    assert (queued.end.stage, queued.ids) == (Stage.WAITING, [])
    assert driver.engine.snapshot().prompt_tokens == prompt_tokens
    third = driver.turn("r3", C)
    driver.run()
    assert third.ids == expected(history + C, 8)
    assert third.end.cached_tokens == max(0, len(history) - 1)


def test_waiting_clock_covers_a_turn_parked_behind_another(depth: int) -> None:
    """C1: W19: session case T11: the turn before it takes longer than the limit."""
    driver = Driver(depth=depth)
    driver.open()
    running = driver.turn("r1", A, max_tokens=50)
    parked = driver.turn("r2", B, on_busy=OnBusy.QUEUE, waiting_timeout_s=0.2)
    steps(driver, 15)
    assert parked.end is None
    driver.tick(0.2)
    assert (parked.end.reason, parked.end.stage) == (Reason.WAITING_TIMEOUT, Stage.WAITING)
    driver.run()
    assert running.ids == expected(A, 50)
    assert driver.info().queued == 0


def test_waiting_clock_covers_a_turn_whose_history_is_being_read(depth: int) -> None:
    """C1, A1: W19: session case T11: the store does not answer; its late answer finds nobody."""
    driver = Driver(depth=depth)
    first = with_one_turn(driver)
    other = Driver(depth=depth)
    other.store, other.hold_store = driver.store, True
    expires, leaves = other.turn("r2", B, waiting_timeout_s=0.2), other.turn("r3", B)
    other.abort(rids=("r3",))
    other.tick(0.2)
    assert (expires.end.reason, leaves.end.reason) == (Reason.WAITING_TIMEOUT, Reason.CLIENT_ABORT)
    other.hold_store = False
    other.answer_store()
    after = other.turn("r4", C)
    other.run()
    assert after.ids == expected(A + first.ids + C, 8)


# -- preemption --------------------------------------------------------------------------------------------------------


def until_preempted(driver: Driver, rid: str) -> None:
    for _ in range(400):
        driver.step()
        (request,) = driver.engine.core.requests.by_rid("t", rid)
        if request is not None and request.preemptions and request.state is RequestState.WAITING:
            return
    pytest.fail(f"{rid} was never preempted")


def test_preempted_request_is_not_counted_by_the_queue_limit(depth: int) -> None:
    """K4: W25: it has been let in once; a full queue refuses newcomers only."""
    driver = Driver(depth=depth, page_size=4, kv_tokens=80, max_running=2, max_waiting=1)
    first = driver.submit("a", range(20), 40, priority=1)
    second = driver.submit("b", range(30, 50), 40) if driver.step() else None
    driver.step()
    driver.submit("c", C, 4, priority=-1)
    until_preempted(driver, "b")
    assert driver.submit("d", C, 4).end.reason is Reason.QUEUE_FULL
    driver.run()
    assert first.ids == expected(list(range(20)), 40)
    assert second.ids == expected(list(range(30, 50)), 40)
    assert driver.told["c"].ids == expected(C, 4)


def test_waiting_clock_is_over_once_a_request_has_run(depth: int) -> None:
    """C1: session case T07: preempted, it waits again for longer than the waiting limit, and ends well."""
    driver = Driver(depth=depth, page_size=4, kv_tokens=80, max_running=2)
    driver.submit("a", range(20), 40, priority=1)
    driver.step()
    low = driver.submit("b", range(30, 50), 40, waiting_timeout_s=1.0)
    until_preempted(driver, "b")
    driver.tick(5.0)
    assert low.end is None
    driver.run()
    assert low.ids == expected(list(range(30, 50)), 40)


def test_running_clock_and_abort_reach_a_preempted_request(depth: int) -> None:
    """C1, E5: session case A04: stage `preempted`, with the tokens that were delivered."""
    for ends in ("running_timeout", "abort_all"):
        driver = Driver(depth=depth, page_size=4, kv_tokens=80, max_running=2)
        driver.submit("a", range(20), 40, priority=1)
        driver.step()
        low = driver.submit("b", range(30, 50), 40, running_timeout_s=60.0)
        until_preempted(driver, "b")
        if ends == "abort_all":
            driver.abort(all=True)
        else:
            driver.tick(60.0)
        assert low.end.reason is (Reason.CLIENT_ABORT if ends == "abort_all" else Reason.RUNNING_TIMEOUT)
        assert (low.end.stage, low.end.completion_tokens) == (Stage.PREEMPTED, len(low.ids))
        assert 0 < len(low.ids) < 40
        driver.run()


# -- reasons -----------------------------------------------------------------------------------------------------------


def test_running_timeout_in_mid_prefill_keeps_its_reason(depth: int) -> None:
    """C1, E2: W26."""
    driver = Driver(depth=depth, max_step_tokens=8)
    told = driver.submit("a", range(200), running_timeout_s=0.05)
    steps(driver, 7)
    driver.run()
    assert (told.end.reason, told.end.stage, told.ids) == (Reason.RUNNING_TIMEOUT, Stage.PREFILL, [])


def test_every_cause_has_its_own_reason(depth: int) -> None:
    """E2, E6: W20, W24: four causes that others tell by one code; each is counted by reason and stage."""
    driver = Driver(depth=depth, max_running=1, max_waiting=2)
    running = driver.submit("run", A, 300, running_timeout_s=1.0)
    driver.step()
    waits = driver.submit("wait", B, waiting_timeout_s=0.5)
    stopped = driver.submit("stop", B)
    full = driver.submit("full", B)
    driver.tick(0.5)
    driver.tick(0.6)
    driver.handle(Shutdown())
    ends = [told.end for told in (running, waits, full, stopped)]
    assert [end.reason for end in ends] == [
        Reason.RUNNING_TIMEOUT,
        Reason.WAITING_TIMEOUT,
        Reason.QUEUE_FULL,
        Reason.SHUTDOWN,
    ]
    counted = {(reason, stage): count for _, reason, stage, count in driver.engine.snapshot().ends}
    assert counted == {(end.reason.value, end.stage.value): 1 for end in ends}
    driver.run()


def test_replace_of_everything_on_a_full_tree(depth: int) -> None:
    """S3: W10: no parent and `replace` on a session with branches, also while one of its turns runs."""
    driver = Driver(depth=depth)
    driver.open(mode=SessionMode.TREE)
    for key, parent in (("r1", None), ("r2", "r1"), ("r3", "r1"), ("r4", None)):
        driver.turn(key, A, parent=parent)
        driver.run()
    running = driver.turn("r5", A, max_tokens=50, parent="r2")
    driver.step()
    told = driver.turn("r6", B, parent=None, replace=True)
    assert running.end.reason is Reason.SUPERSEDED
    driver.run()
    assert (told.ids, driver.info().turns) == (expected(B, 8), 1)


# -- grammars ----------------------------------------------------------------------------------------------------------

WORD = Grammar(kind=GrammarKind.REGEX, text="[a-f]{10}x")


def test_timeout_of_a_grammar_is_retryable_and_the_next_try_succeeds(depth: int) -> None:
    """E2: W23: session case T10: told apart from an invalid one, whatever text comes with it."""
    driver = Driver(depth=depth)
    driver.hold_grammars = True
    slow = driver.submit("a", A, 20, grammar=WORD)
    uid = driver.engine.core.requests.by_rid("t", "a")[0].uid
    driver.handle(GrammarReady(uid=uid, timed_out=True, error="not compiled within 5 s"))
    assert (slow.end.reason, slow.end.stage) == (Reason.GRAMMAR_TIMEOUT, Stage.GRAMMAR)
    driver.hold_grammars = False
    again = driver.submit("b", A, 20, grammar=WORD)
    driver.run()
    assert (again.end.outcome, len(again.ids)) == (Outcome.STOP, 12)


def test_grammar_that_is_told_of_twice_changes_nothing(depth: int) -> None:
    """E1: while it runs, and while a step in flight still names it after its end."""
    driver = Driver(depth=depth)
    told = driver.submit("a", A, 20, grammar=WORD)
    uid = driver.engine.core.requests.by_rid("t", "a")[0].uid
    driver.step()
    driver.handle(GrammarReady(uid=uid))
    driver.handle(GrammarReady(uid=uid, error="wrong after all"))
    assert told.end is None
    driver.launch()
    driver.abort(rids=("a",))
    driver.handle(GrammarReady(uid=uid, timed_out=True))
    driver.run()
    assert told.end.reason is Reason.CLIENT_ABORT
