"""Streaming sessions on the toy runner: history, lease, KV between turns, and what an abort leaves behind."""

from __future__ import annotations

import pytest

from actors.messages import OnBusy, Outcome, Reason, Stage
from tests.engine.driver import Driver, expected

A, B, C = list(range(1, 11)), list(range(20, 27)), list(range(40, 45))


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def driver(request: pytest.FixtureRequest) -> Driver:
    return Driver(depth=request.param)


def test_next_turn_appends_to_what_was_committed(driver: Driver) -> None:
    """S1, S4, K1: the second turn's prompt is T(1) + input, and its KV is there but for one token."""
    driver.open()
    first = driver.turn("r1", A)
    driver.run()
    second = driver.turn("r2", B)
    driver.run()
    assert first.ids == expected(A, 8)
    assert second.ids == expected(A + first.ids + B, 8)
    assert second.end.prompt_tokens == len(A) + 8 + len(B)
    assert second.end.cached_tokens in (len(A) + 8, len(A) + 7)
    assert second.end.turn == 2


def test_aborted_turn_leaves_history_and_slot_as_they_were(driver: Driver) -> None:
    """S2, K2, A7: field case N29: the next turn sees neither its input nor its output, and finds all committed KV."""
    driver.open()
    first = driver.turn("r1", A)
    driver.run()
    held = driver.engine.snapshot().pages.session_held
    aborted = driver.turn("r2", B, max_tokens=100)
    for _ in range(9):
        driver.step()
    report = driver.abort(rids=("r2",))
    assert [hit.stage for hit in report.hit] == [Stage.DECODE]
    assert aborted.end.outcome is Outcome.ABORT
    assert aborted.ids == expected(A + first.ids + B, len(aborted.ids))
    third = driver.turn("r3", C)
    driver.run()
    assert third.ids == expected(A + first.ids + C, 8)
    assert third.end.cached_tokens == len(A) + 7
    assert third.end.turn == 2
    assert driver.engine.snapshot().pages.session_held > held


def test_abort_gives_back_exactly_what_the_turn_added(driver: Driver) -> None:
    """K2: pages by owner after the abort are those before the turn."""
    driver.open()
    driver.turn("r1", A)
    driver.run()
    before = driver.engine.snapshot().pages
    driver.turn("r2", list(range(50, 90)), max_tokens=100)
    for _ in range(6):
        driver.step()
    driver.abort(session_id="s")
    driver.run()
    after = driver.engine.snapshot().pages
    assert (after.session_held, after.request_owned) == (before.session_held, 0)


def test_first_turn_aborted_leaves_an_empty_session(driver: Driver) -> None:
    """S2: session case S10."""
    driver.open()
    driver.turn("r1", A, max_tokens=100)
    for _ in range(5):
        driver.step()
    driver.abort(rids=("r1",))
    second = driver.turn("r2", B)
    driver.run()
    assert second.end.prompt_tokens == len(B)
    assert second.ids == expected(B, 8)


def test_second_turn_is_refused_at_once_while_one_runs(driver: Driver) -> None:
    """S5, S6, S7: W5: session case S06: a refused turn changes nothing, also not whose lease it is."""
    driver.open()
    first = driver.turn("r1", A, max_tokens=20)
    driver.step()
    for name in ("r2", "r3", "r4"):
        refused = driver.turn(name, B)
        assert (refused.end.reason, refused.ids) == (Reason.SESSION_BUSY, [])
    driver.run()
    assert first.ids == expected(A, 20)
    assert driver.info().turns == 1


def test_two_first_turns_at_once_exactly_one_runs(driver: Driver) -> None:
    """S5: W5b."""
    driver.open()
    first, second = driver.turn("r1", A), driver.turn("r2", B)
    driver.run()
    assert first.ids == expected(A, 8)
    assert second.end.reason is Reason.SESSION_BUSY


def test_queued_turns_run_in_order_of_arrival(driver: Driver) -> None:
    """S6: W16: field case N31: a queued turn restores what the one before it committed."""
    driver.open()
    told = [driver.turn(f"r{n}", [n] * 5, on_busy=OnBusy.QUEUE) for n in range(1, 5)]
    driver.abort(rids=("r3",))
    driver.run()
    history = [1] * 5 + told[0].ids
    history += [2] * 5
    assert told[1].ids == expected(history, 8)
    history += told[1].ids + [4] * 5
    assert told[3].ids == expected(history, 8)
    assert (told[2].end.reason, told[2].end.stage) == (Reason.CLIENT_ABORT, Stage.WAITING)


def test_too_many_queued_turns_are_refused() -> None:
    """S6, S10: the session's own queue is limited."""
    driver = Driver(max_queued_turns=2)
    driver.open()
    told = [driver.turn(f"r{n}", [n] * 5, on_busy=OnBusy.QUEUE) for n in range(4)]
    assert told[3].end.reason is Reason.QUEUE_FULL
    driver.run()
    assert [t.end.outcome for t in told[:3]] == [Outcome.LENGTH] * 3


def test_superseding_turn_cancels_the_running_one_and_runs_from_the_last_commit(driver: Driver) -> None:
    """S6: field case N30."""
    driver.open()
    first = driver.turn("r1", A)
    driver.run()
    second = driver.turn("r2", B, max_tokens=100)
    for _ in range(5):
        driver.step()
    third = driver.turn("r3", C, on_busy=OnBusy.SUPERSEDE)
    assert (second.end.reason, second.end.stage) == (Reason.SUPERSEDED, Stage.DECODE)
    driver.run()
    assert third.ids == expected(A + first.ids + C, 8)


@pytest.mark.parametrize("wrong", [{"replace": True}, {"drop_previous_output": True}, {"offset": 3}])
def test_streaming_refuses_what_only_trees_can(driver: Driver, wrong: dict[str, object]) -> None:
    """S3: session case S04: refused, and the session is unharmed."""
    driver.open()
    first = driver.turn("r1", A)
    driver.run()
    assert driver.turn("r2", B, **wrong).end.reason is Reason.INVALID
    third = driver.turn("r3", C)
    driver.run()
    assert third.ids == expected(A + first.ids + C, 8)
    assert third.end.cached_tokens >= len(A) + 7


def test_turn_is_told_as_done_only_after_the_store_has_it(driver: Driver) -> None:
    """T1, S5: until then the lease is held and the terminal event waits."""
    driver.open()
    driver.hold_store = True
    first = driver.turn("r1", A)
    driver.run()
    assert (len(first.ids), first.end) == (8, None)
    assert driver.turn("r2", B).end.reason is Reason.SESSION_BUSY
    assert driver.abort(rids=("r1",)).already_ended == ("r1",)
    driver.hold_store = False
    driver.answer_store()
    assert first.end.outcome is Outcome.LENGTH
    assert driver.info().turns == 1


def test_turn_that_the_store_may_not_have_is_an_error_and_history_is_read_again(driver: Driver) -> None:
    """T1, T6: field case N49."""
    driver.open()
    driver.store_error = "disk full"
    first = driver.turn("r1", A)
    driver.run()
    assert first.end.reason is Reason.INTERNAL
    assert driver.turn("r2", B).end.reason is Reason.INTERNAL
    driver.store_error = ""
    third = driver.turn("r3", B)
    driver.run()
    assert third.ids == expected(B, 8)


def test_commit_under_a_stale_epoch_is_refused_and_the_session_given_up(driver: Driver) -> None:
    """T3: fencing."""
    driver.open()
    driver.stale = True
    first = driver.turn("r1", A)
    driver.run()
    assert first.end.reason is Reason.WORKER_LOST
    assert driver.info() is None


def test_session_is_restored_from_the_store_by_a_new_owner(driver: Driver) -> None:
    """T4, S1: session case S27: KV is a cache; losing it costs a prefill."""
    driver.open()
    first = driver.turn("r1", A)
    driver.run()
    other = Driver(depth=driver.engine.settings.depth)
    other.store = driver.store
    second = other.turn("r2", B)
    other.run()
    assert second.ids == expected(A + first.ids + B, 8)
    assert second.end.cached_tokens == 0


def test_repeated_rid_is_answered_from_the_stored_turn(driver: Driver) -> None:
    """T2: field case N27: same body: the stored result without a forward pass; another body: refused."""
    driver.open()
    first = driver.turn("k1", A, rid="r1", digest=b"x")
    driver.run()
    steps = driver.engine.snapshot().steps
    again = driver.turn("k2", A, rid="r1", digest=b"x")
    assert again.end.replayed
    assert (again.ids, again.end.prompt_tokens, again.end.turn) == (first.ids, len(A), 1)
    assert driver.turn("k3", B, rid="r1", digest=b"y").end.param == "idempotency_key"
    assert driver.engine.snapshot().steps == steps


def test_create_on_a_session_with_history_is_refused(driver: Driver) -> None:
    """S14."""
    driver.open()
    driver.turn("r1", A, create=True)
    driver.run()
    assert driver.turn("r2", B, create=True).end.reason is Reason.SESSION_EXISTS


def test_missing_end_of_turn_is_put_before_the_next_message(driver: Driver) -> None:
    """S4: a reply cut by max_tokens has no end-of-turn token; the template's is added, once."""
    driver.open()
    first = driver.turn("r1", A, root_ids=(7, 7, 7))
    driver.run()
    assert first.ids == expected([7, 7, 7], 8)
    second = driver.turn("r2", B, root_ids=(7, 7, 7), close_ids=(99,))
    driver.run()
    assert second.ids == expected([7, 7, 7, *first.ids, 99, *B], 8)


def test_prompt_too_long_only_after_restoring_is_refused_with_the_numbers() -> None:
    """S10, K5: field case N34."""
    driver = Driver(max_context=64)
    driver.open()
    driver.turn("r1", list(range(40)), max_tokens=8)
    driver.run()
    refused = driver.turn("r2", list(range(20)))
    assert refused.end.reason is Reason.TOO_LARGE
    assert "68" in refused.end.message
    assert "64" in refused.end.message
    third = driver.turn("r3", [1, 2], max_tokens=4)
    driver.run()
    assert third.end.cached_tokens in (47, 48)


def test_capacity_of_a_session_is_enforced(driver: Driver) -> None:
    """S10."""
    driver.open(capacity_tokens=30)
    driver.turn("r1", A)
    driver.run()
    assert driver.turn("r2", list(range(12)), max_tokens=8).end.reason is Reason.SESSION_CAPACITY
    driver.turn("r3", C, max_tokens=None)
    driver.run()
    assert driver.told["r3"].end.completion_tokens == 30 - 18 - len(C)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_turn_sent_again_after_its_abort_finds_what_was_committed_and_no_more(page_size: int) -> None:
    """K1, K2: pages that the aborted attempt had filled with the same input do not count: as if it had never been."""
    driver = Driver(page_size=page_size)
    driver.open()
    first = driver.turn("r1", list(range(40)), 4)
    driver.run()
    driver.turn("r2", list(range(100, 150)), 20)
    for _ in range(10):
        driver.step()
    driver.abort(rids=("r2",))
    again = driver.turn("r3", list(range(100, 150)), 4)
    driver.run()
    assert again.end.cached_tokens == 43
    assert again.ids == expected([*range(40), *first.ids, *range(100, 150)], 4)
