"""Grammars in the engine: the stage in which they are compiled, every way out of it, and outputs that obey."""

from __future__ import annotations

import re
from typing import Any

import pytest

from actors.messages import CloseSession, Grammar, GrammarKind, OnBusy, Outcome, Reason, SamplingParams, Shutdown, Stage
from actors.runner.script import ScriptRunner
from tests.engine.driver import Driver, Told, expected, expected_under

PROMPT = list(range(10, 30))
WORD = Grammar(kind=GrammarKind.REGEX, text="[a-f]{40}x")
CHOICE = Grammar(kind=GrammarKind.CHOICE, text='["yes", "no", "perhaps"]')
WRONG = Grammar(kind=GrammarKind.REGEX, text="a|(")


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def driver(request: pytest.FixtureRequest) -> Driver:
    return Driver(depth=request.param)


def text(told: Told) -> str:
    return bytes(token for token in told.ids if token < 256).decode()


def ended(told: Told) -> tuple[Any, ...]:
    assert told.end is not None
    return told.end.outcome, told.end.reason, told.end.stage


def at_rest(driver: Driver) -> None:
    driver.run()
    assert driver.grammars.open_uids == set()
    assert driver.engine.num_live == 0
    assert driver.engine.core.kv.counts.request_owned == 0


def test_output_obeys_and_stops_where_the_grammar_ends(driver: Driver) -> None:
    """E7: the end-of-reply token ends it, as it ends any reply."""
    word, choice = driver.submit("w", PROMPT, 60, grammar=WORD), driver.submit("c", PROMPT, 60, grammar=CHOICE)
    driver.run()
    assert re.fullmatch(WORD.text, text(word))
    assert text(choice) in ("yes", "no", "perhaps")
    assert ended(word) == ended(choice) == (Outcome.STOP, None, None)
    at_rest(driver)


def test_length_comes_before_the_end_of_the_grammar(driver: Driver) -> None:
    """E7."""
    word = driver.submit("w", PROMPT, 10, grammar=WORD)
    driver.run()
    assert re.fullmatch("[a-f]{10}", text(word))
    assert ended(word)[0] is Outcome.LENGTH
    at_rest(driver)


def test_preemption_and_chunks_change_nothing(driver: Driver) -> None:
    """I3, K4: a preempted request goes on where its grammar was."""
    tight = Driver(depth=driver.engine.settings.depth, kv_tokens=120, max_step_tokens=7)
    prompts = [[n, *PROMPT] for n in range(4)]
    told = [tight.submit(f"r{n}", prompt, 60, grammar=WORD) for n, prompt in enumerate(prompts)]
    tight.run()
    assert tight.engine.snapshot().preemptions
    for prompt, answer in zip(prompts, told, strict=True):
        assert answer.ids == expected_under(WORD, prompt, 60)
        assert re.fullmatch(WORD.text, text(answer))
    at_rest(tight)


def test_others_do_not_wait_while_a_grammar_is_compiled(driver: Driver) -> None:
    driver.hold_grammars = True
    word = driver.submit("w", PROMPT, 60, grammar=WORD)
    plain = driver.submit("p", PROMPT, 5)
    assert not driver.engine.core.requests.num_running
    driver.run()
    assert plain.ids == expected(PROMPT, 5)
    assert word.end is None
    assert driver.engine.snapshot().compiling == 1
    driver.answer_grammar()
    driver.run()
    assert ended(word)[0] is Outcome.STOP
    at_rest(driver)


@pytest.mark.parametrize("how", ["abort", "disconnect", "deadline", "waiting", "shutdown"])
def test_every_end_reaches_a_request_in_the_grammar_stage(driver: Driver, how: str) -> None:
    """A12, T11, C1, C4: at once, in stage `grammar`, without a forward pass; the late result is ignored."""
    driver.hold_grammars = True
    clocks = {"deadline": {"deadline_s": 1.0}, "waiting": {"waiting_timeout_s": 1.0}}
    word = driver.submit("w", PROMPT, 60, grammar=WORD, **clocks.get(how, {}))
    result = None
    if how == "abort":
        assert [hit.stage for hit in driver.abort(rids=("w",)).hit] == [Stage.GRAMMAR]
        reason = Reason.CLIENT_ABORT
    elif how == "disconnect":
        driver.abort(keys=("w",), reason=Reason.CLIENT_DISCONNECT)
        reason = Reason.CLIENT_DISCONNECT
    elif how == "shutdown":
        driver.handle(Shutdown())
        reason = Reason.SHUTDOWN
    else:
        result = driver.grammars
        driver.tick(1.1)
        reason = Reason.DEADLINE if how == "deadline" else Reason.WAITING_TIMEOUT
    assert ended(word) == (Outcome.ABORT, reason, Stage.GRAMMAR)
    assert driver.grammars.held == {}
    assert driver.engine.snapshot().steps == 0
    assert result is None or result.released
    at_rest(driver)


def test_a_result_that_comes_too_late_is_ignored(driver: Driver) -> None:
    driver.hold_grammars = True
    word = driver.submit("w", PROMPT, 60, grammar=WORD)
    late = driver.grammars.answer()
    driver.abort(rids=("w",))
    driver.handle(late)
    assert ended(word)[1] is Reason.CLIENT_ABORT
    at_rest(driver)


def test_an_invalid_grammar_and_a_timeout_are_told_apart(driver: Driver) -> None:
    """G01, T10, E2."""
    wrong = driver.submit("w", PROMPT, 60, grammar=WRONG)
    assert ended(wrong) == (Outcome.ABORT, Reason.GRAMMAR_INVALID, Stage.GRAMMAR)
    assert wrong.end is not None
    assert wrong.end.param == "grammar"
    driver.hold_grammars = True
    slow = driver.submit("s", PROMPT, 60, grammar=WORD)
    driver.answer_grammar(timed_out=True)
    assert ended(slow) == (Outcome.ABORT, Reason.GRAMMAR_TIMEOUT, Stage.GRAMMAR)
    again = driver.submit("a", PROMPT, 60, grammar=WORD)
    driver.answer_grammar()
    driver.run()
    assert ended(again)[0] is Outcome.STOP
    at_rest(driver)


@pytest.mark.parametrize("way", ["invalid", "timeout", "abort", "close"])
def test_a_turn_that_ends_while_compiling_leaves_no_trace(driver: Driver, way: str) -> None:
    """G03, S2, S5, A7: the lease is free, history and KV are what they were, the next turn runs at once."""
    driver.open()
    first = driver.turn("t1", PROMPT, 6)
    driver.run()
    driver.hold_grammars = True
    broken = driver.turn("t2", [1, 2], 60, grammar=WRONG if way == "invalid" else WORD)
    info = driver.info()
    assert info is not None
    assert info.running_rid == "t2"
    queued = driver.turn("t3", [3], 4, on_busy=OnBusy.QUEUE)
    assert queued.end is None
    if way == "close":
        driver.handle(CloseSession(tenant="t", session_id="s", generation=1, abort_running=True, ask=77))
        assert ended(broken) == (Outcome.ABORT, Reason.SESSION_CLOSED, Stage.GRAMMAR)
        assert ended(queued)[1] is Reason.SESSION_CLOSING
        assert driver.replies[77]
        at_rest(driver)
        return
    if way == "abort":
        driver.abort(rids=("t2",))
    else:
        driver.answer_grammar(timed_out=way == "timeout")
    assert ended(broken)[2] is Stage.GRAMMAR
    driver.run()
    context = PROMPT + first.ids
    assert queued.ids == expected([*context, 3], 4)
    assert queued.end is not None
    assert queued.end.cached_tokens in (len(context), len(context) - 1)
    at_rest(driver)


def test_a_constrained_turn_becomes_history(driver: Driver) -> None:
    """S2, S4: its end-of-reply token included."""
    driver.open()
    first = driver.turn("t1", PROMPT, 60, grammar=CHOICE)
    driver.run()
    second = driver.turn("t2", [7], 5)
    driver.run()
    assert second.ids == expected([*PROMPT, *first.ids, 7], 5)
    at_rest(driver)


def test_superseding_a_turn_that_compiles(driver: Driver) -> None:
    """S6."""
    driver.open()
    driver.hold_grammars = True
    first = driver.turn("t1", PROMPT, 60, grammar=WORD)
    second = driver.turn("t2", PROMPT, 5, on_busy=OnBusy.SUPERSEDE)
    assert ended(first) == (Outcome.ABORT, Reason.SUPERSEDED, Stage.GRAMMAR)
    driver.run()
    assert second.ids == expected(PROMPT, 5)
    at_rest(driver)


def test_the_queue_limit_counts_requests_that_compile() -> None:
    """G04."""
    driver = Driver(max_waiting=2)
    driver.hold_grammars = True
    for key in ("a", "b"):
        driver.submit(key, PROMPT, 60, grammar=WORD)
    assert ended(driver.submit("c", PROMPT, 5)) == (Outcome.ABORT, Reason.QUEUE_FULL, Stage.ROUTING)
    driver.hold_grammars = False
    driver.answer_grammar()
    at_rest(driver)


def test_without_grammars_the_request_is_refused() -> None:
    """G02."""
    runner = ScriptRunner([65, 66], vocab_bytes=[bytes([n]) for n in range(200)], eos_id=199)
    told = Driver(runner).submit("a", PROMPT, 5, grammar=WORD)
    assert ended(told) == (Outcome.ABORT, Reason.INVALID, Stage.ROUTING)
    assert told.end is not None
    assert told.end.param == "grammar"


@pytest.mark.parametrize("field", [{"min_tokens": 3}, {"ignore_eos": True}])
def test_what_would_outlive_a_grammar_is_refused(driver: Driver, field: dict[str, Any]) -> None:
    """I1: naming the field."""
    told = driver.submit("a", PROMPT, sampling=SamplingParams(max_tokens=9, **field), grammar=CHOICE)
    assert ended(told)[1] is Reason.INVALID
    assert told.end is not None
    assert told.end.param == next(iter(field))


def test_a_dead_end_ends_that_row_alone(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """N52, third run: a grammar that reaches a state without a legal token."""
    from actors.runner.grammar.matchers import DeadEnd

    matchers = driver.runner.matchers
    assert matchers is not None
    real = matchers.allowed

    def allowed(uid: int, output: Any) -> Any:
        if uid == 2 and len(output) == 3:
            raise DeadEnd("nothing is allowed")
        return real(uid, output)

    monkeypatch.setattr(matchers, "allowed", allowed)
    driver.open()
    before = driver.turn("t0", [5], 2)  # uid 1
    driver.run()
    stuck = driver.turn("t1", PROMPT, 60, grammar=WORD)  # uid 2
    others = [driver.submit(f"r{n}", [n, *PROMPT], 60, grammar=WORD) for n in range(3)]
    driver.run()
    assert ended(stuck) == (Outcome.ABORT, Reason.GRAMMAR_INVALID, Stage.DECODE)
    assert len(stuck.ids) == 3
    assert all(re.fullmatch(WORD.text, text(other)) for other in others)
    after = driver.turn("t2", [6], 4)
    driver.run()
    assert after.ids == expected([5, *before.ids, 6], 4)
    at_rest(driver)
