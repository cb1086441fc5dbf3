"""Who may end what: leases, generations, tenants, names, and messages that come twice or late."""

from __future__ import annotations

import pytest

from actors.engine.effects import TurnStored
from actors.engine.history import History
from actors.engine.request import Request
from actors.engine.sessions import SessionState, SessionTable
from actors.messages import CloseSession, OnBusy, Outcome, Reason, SamplingParams, SessionMode, Submit
from actors.records import SessionRecord
from tests.engine.driver import Driver, expected

A, B, C = list(range(1, 11)), list(range(20, 27)), list(range(40, 45))


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


# -- leases ------------------------------------------------------------------------------------------------------------


def test_only_its_owner_ends_a_lease() -> None:
    """S5: W5: compare-and-clear: another uid changes neither the lease, nor the state, nor the idle clock."""
    table = SessionTable()
    session = table.add("t", "s", 1, 1)
    record = SessionRecord(
        tenant="t",
        session_id="s",
        generation=1,
        epoch=1,
        owner="w",
        mode=SessionMode.STREAMING,
        idle_timeout_s=None,
        capacity_tokens=None,
        turns=0,
        tokens=0,
        last_active_at=0.0,
    )
    table.loaded(session, record, History(), 1.0)
    owner = Request(
        7, Submit(key="k", rid="r", ingress="i", tenant="t", input_ids=(1,), sampling=SamplingParams()), 1.0
    )
    lease = table.grant(session, owner, 2.0)
    assert not table.clear(session, 8, 3.0)
    assert (session.lease, session.state, session.idle_since) == (lease, SessionState.BUSY, 1.0)
    assert table.clear(session, 7, 4.0)
    assert (session.lease, session.state, session.idle_since) == (None, SessionState.IDLE, 4.0)
    assert not table.clear(session, 7, 5.0)
    assert session.idle_since == 4.0


def test_queued_turn_that_is_refused_lets_the_next_one_run(depth: int) -> None:
    """S6, S7: of three that wait, the first turns out not to fit; the others still run, in order."""
    driver = Driver(depth=depth, max_context=64)
    driver.open()
    first = driver.turn("r1", A)
    told = [
        driver.turn(f"q{n}", prompt, on_busy=OnBusy.QUEUE) for n, prompt in enumerate([list(range(100, 150)), B, C])
    ]
    driver.run()
    assert told[0].end.reason is Reason.TOO_LARGE
    assert told[1].ids == expected(A + first.ids + B, 8)
    assert told[2].ids == expected(A + first.ids + B + told[1].ids + C, 8)


def test_refused_supersede_aborts_nobody(depth: int) -> None:
    """S6, S7: a turn that could not run anyway does not cost the running one its life."""
    driver = Driver(depth=depth, max_context=64)
    driver.open()
    running = driver.turn("r1", A, max_tokens=20)
    driver.step()
    refused = driver.turn("r2", list(range(100, 180)), on_busy=OnBusy.SUPERSEDE)
    assert refused.end.reason is Reason.TOO_LARGE
    driver.run()
    assert running.ids == expected(A, 20)


def test_superseding_turns_that_meet_a_turn_being_stored_keep_their_order(depth: int) -> None:
    """S6: the running turn cannot be undone any more, so both wait; then the second takes over from the first."""
    driver = Driver(depth=depth)
    driver.open()
    driver.hold_store = True
    stored = driver.turn("r1", A, max_tokens=2)
    driver.run()
    assert stored.end is None
    queued = driver.turn("q", C, on_busy=OnBusy.QUEUE)
    first = driver.turn("r2", B, on_busy=OnBusy.SUPERSEDE)
    second = driver.turn("r3", C, on_busy=OnBusy.SUPERSEDE)
    driver.hold_store = False
    driver.answer_store()
    driver.run()
    assert stored.end.outcome is Outcome.LENGTH
    assert (first.end.reason, first.ids) == (Reason.SUPERSEDED, [])
    assert second.ids == expected(A + stored.ids + C, 8)
    assert queued.ids == expected(A + stored.ids + C + second.ids + C, 8)


# -- the idle clock ----------------------------------------------------------------------------------------------------


def test_one_idle_clock_is_kept_per_session(depth: int) -> None:
    """S8, C1: however many turns there were; the session still expires when its last turn is long over."""
    driver = Driver(depth=depth)
    driver.open(idle_timeout_s=10.0)
    for number in range(30):
        driver.turn(f"k{number}", [number], 2)
        driver.run()
        driver.tick(0.5)
    assert driver.engine.snapshot().clocks == 1
    driver.tick(9.0)
    assert driver.info() is not None
    driver.tick(1.5)
    assert driver.info() is None


def test_each_turn_starts_the_idle_clock_anew(depth: int) -> None:
    """S8: session cases B13, B17: short turns with pauses shorter than the timeout keep the session for ever."""
    driver = Driver(depth=depth)
    driver.open(idle_timeout_s=2.0)
    for number in range(4):
        driver.tick(1.5)
        assert driver.info() is not None
        driver.turn(f"r{number}", B, max_tokens=2)
        driver.run()
    driver.tick(1.9)
    assert driver.info() is not None
    driver.tick(0.2)
    assert driver.info() is None


@pytest.mark.parametrize("wrong", [{"prompt": list(range(100, 180))}, {"replace": True}, {"create": True}])
def test_refused_turn_does_not_touch_the_idle_clock(depth: int, wrong: dict) -> None:
    """S7, S8."""
    driver = Driver(depth=depth, max_context=64)
    driver.open(idle_timeout_s=2.0)
    driver.turn("r1", A, max_tokens=2)
    driver.run()
    driver.tick(1.5)
    idle = driver.info().idle_s
    assert driver.turn("bad", **{"prompt": B, **wrong}).end.outcome is Outcome.ABORT
    assert driver.info().idle_s == idle
    driver.tick(0.6)
    assert driver.info() is None


# -- generations and epochs --------------------------------------------------------------------------------------------


def test_close_of_an_older_session_of_the_same_id_changes_nothing(depth: int) -> None:
    """S9: session case A22: its generation is not the one that is open."""
    driver = Driver(depth=depth)
    old = driver.open()
    driver.close()
    driver.open()
    driver.turn("r1", A)
    driver.run()
    reply = driver.ask(CloseSession, session_id="s", generation=old.generation, abort_running=True)
    assert not reply.known
    assert driver.info().turns == 1


@pytest.mark.parametrize("of", ["generation", "epoch"])
def test_turn_meant_for_a_former_session_is_sent_back(depth: int, of: str) -> None:
    """S9, T3: session case A22: it does not run in the one that is open now; the ingress is told to ask again."""
    driver = Driver(depth=depth)
    driver.open()
    driver.close()
    driver.open()
    late = driver.turn("late", A, **{of: 0})
    assert (late.end.reason, late.end.redirect) == (Reason.WORKER_LOST, True)
    assert driver.info().turns == 0


def test_aborting_close_answers_only_when_no_step_names_the_pages() -> None:
    """S9, A3: session case B11: with overlapped steps the turn ends at once, the close when its pages are back."""
    driver = Driver(depth=1, prefix_cache=False)
    driver.open()
    turn = driver.turn("r1", A, 50)
    driver.launch()
    driver.launch()
    assert driver.close(abort_running=True) is None
    assert turn.end.reason is Reason.SESSION_CLOSED
    while driver.launched:
        assert not any(getattr(reply, "known", False) for reply in driver.replies.values())
        driver.commit()
    assert any(getattr(reply, "known", False) for reply in driver.replies.values())
    pages = driver.engine.snapshot().pages
    assert pages.free == pages.total


# -- the store ---------------------------------------------------------------------------------------------------------


def test_turn_that_was_stored_although_the_store_failed_is_history(depth: int) -> None:
    """T1, T6: whether it was stored was unknown; the next turn reads the history anew, and finds it."""
    driver = Driver(depth=depth)
    driver.open()
    driver.hold_store = True
    first = driver.turn("r1", A)
    driver.run()
    effect = driver.effects.popleft()
    driver.store[("t", "s")].turns.append(effect.commit.turn)
    driver.handle(TurnStored(session=effect.session, uid=effect.uid, error="the answer was lost"))
    assert first.end.reason is Reason.INTERNAL
    driver.hold_store = False
    second = driver.turn("r2", B)
    driver.run()
    assert second.ids == expected(A + first.ids + B, 8)


# -- names and messages ------------------------------------------------------------------------------------------------


def test_attempt_delivered_twice_runs_once(depth: int) -> None:
    """E1, T2: while it runs, and after it ended."""
    driver = Driver(depth=depth)
    told = driver.submit("k", A, 20)
    message = Submit(
        key="k", rid="k", ingress="i", tenant="t", input_ids=tuple(A), sampling=SamplingParams(max_tokens=20)
    )
    driver.step()
    driver.handle(message)
    driver.run()
    driver.handle(message)
    driver.run()
    assert told.ids == expected(A, 20)
    assert driver.engine.snapshot().received == 1


@pytest.mark.parametrize("selector", [{"all": True}, {"session_id": "s"}, {"rid_prefix": "r"}, {"rids": ("r2",)}])
def test_abort_keeps_to_its_tenant(depth: int, selector: dict) -> None:
    """A1, A2, S13: whatever it names, another tenant's requests go on."""
    driver = Driver(depth=depth)
    driver.open()
    driver.turn("r1", A, 30)
    mine = driver.submit("r2", A, 30)
    other = driver.submit("k", B, 30, rid="r2", tenant="u")
    driver.step()
    hits = {hit.key for hit in driver.abort(**selector).hit}
    assert hits <= {"r1", "r2"}
    assert "k" not in hits
    driver.run()
    assert other.ids == expected(B, 30)
    assert mine.end is not None


def test_abort_all_ends_all_and_the_worker_goes_on(depth: int) -> None:
    """A1, A4: session case A02: thirty-two requests in eight seats; and once more finds nothing (cases A07, A08)."""
    driver = Driver(depth=depth, max_running=8)
    told = [driver.submit(f"r{n}", A, 50) for n in range(32)]
    for _ in range(6):
        driver.step()
    assert len(driver.abort(all=True).hit) == 32
    assert {t.end.reason for t in told} == {Reason.CLIENT_ABORT}
    assert driver.abort(all=True).hit == ()
    assert driver.abort(rids=("r3",)).already_ended == ("r3",)
    again = driver.submit("again", B, rid="r3")
    driver.run()
    assert again.ids == expected(B, 8)


def test_timeout_of_one_name_is_not_that_of_a_longer_one(depth: int) -> None:
    """A2, C1: session case T09."""
    driver = Driver(depth=depth)
    one, ten = driver.submit("x_1", A, 60, running_timeout_s=0.2), driver.submit("x_10", A, 60)
    driver.run()
    assert one.end.reason is Reason.RUNNING_TIMEOUT
    assert ten.ids == expected(A, 60)
