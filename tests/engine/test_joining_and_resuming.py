"""A running request sent again is joined (rule T2); one whose worker was lost goes on where it was (rule T4)."""

from __future__ import annotations

from typing import Any

import pytest

from actors.messages import Grammar, GrammarKind, IngressLost, OnBusy, Outcome, Reason, SamplingParams, Stage
from tests.engine.driver import Driver, Told, expected, expected_under

PROMPT = list(b"a question")


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


# -- joining -----------------------------------------------------------------------------------------------------------


def two_listeners(depth: int, steps: int = 6, **fields: Any) -> tuple[Driver, Told, Told]:
    """A turn that runs for some steps, and the same sent again by another ingress."""
    driver = Driver(depth=depth)
    driver.open()
    first = driver.turn("k1", PROMPT, 12, rid="r", digest=b"body", ingress="i1", **fields)
    for _ in range(steps):
        driver.step()
    second = driver.turn("k2", PROMPT, 12, rid="r", digest=b"body", ingress="i2", join=True, **fields)
    return driver, first, second


@pytest.mark.parametrize("steps", [0, 1, 6])
def test_who_joins_hears_the_whole_stream(depth: int, steps: int) -> None:
    """T2: field case N28 (c): from token 1, however late; computed and committed once."""
    driver, first, second = two_listeners(depth, steps)
    driver.run()
    assert first.ids == second.ids == expected(PROMPT, 12)
    assert first.end.outcome is second.end.outcome is Outcome.LENGTH
    assert (first.end.key, second.end.key, second.end.ingress) == ("k1", "k2", "i2")
    assert driver.engine.snapshot().output_tokens == 12
    assert driver.info().turns == 1


def test_another_body_is_not_joined(depth: int) -> None:
    """T2: the same name with another body is told so, also while the first runs."""
    driver, first, _ = two_listeners(depth)
    other = driver.turn("k3", PROMPT, 12, rid="r", digest=b"other", join=True)
    assert (other.end.reason, other.end.param) == (Reason.INVALID, "idempotency_key")
    driver.run()
    assert first.end.outcome is Outcome.LENGTH


def test_who_does_not_ask_to_join_is_refused(depth: int) -> None:
    """T2: joined or refused, as the caller asks."""
    driver, _, _ = two_listeners(depth)
    assert driver.turn("k3", PROMPT, 12, rid="r", digest=b"body").end.reason is Reason.SESSION_BUSY


@pytest.mark.parametrize("who", ["k1", "k2"])
def test_one_of_two_listeners_may_leave(depth: int, who: str) -> None:
    """T2, A1: the request goes on for the other, whoever of them it was who had asked first."""
    driver, *both = two_listeners(depth)
    (hit,) = driver.abort(keys=(who,), reason=Reason.CLIENT_DISCONNECT).hit
    assert (hit.key, hit.stage) == (who, Stage.DECODE)
    gone, stays = (both[0], both[1]) if who == "k1" else (both[1], both[0])
    assert gone.end.reason is Reason.CLIENT_DISCONNECT
    driver.run()
    assert stays.ids == expected(PROMPT, 12)
    assert stays.end.turn == 1


def test_when_the_last_listener_leaves_it_ends(depth: int) -> None:
    """T2, A1, K2: nothing of it is history."""
    driver, first, second = two_listeners(depth)
    driver.abort(keys=("k1",))
    driver.abort(keys=("k2",))
    driver.run()
    assert first.end.outcome is second.end.outcome is Outcome.ABORT
    assert driver.info().turns == 0


@pytest.mark.parametrize("how", ["rid", "session", "both keys", "supersede"])
def test_what_ends_the_request_ends_it_for_all(depth: int, how: str) -> None:
    """E1, A1: one terminal event each."""
    driver, first, second = two_listeners(depth)
    if how == "rid":
        driver.abort(rids=("r",))
    elif how == "session":
        driver.abort(session_id="s")
    elif how == "both keys":
        driver.abort(keys=("k1", "k2"))
    else:
        driver.turn("k9", PROMPT, 2, on_busy=OnBusy.SUPERSEDE)
    assert first.end is not None
    assert second.end is not None
    driver.run()


def test_a_lost_ingress_takes_only_its_own_listeners(depth: int) -> None:
    """A1, T2: also when one ingress had both of them."""
    driver, first, second = two_listeners(depth)
    third = driver.turn("k3", PROMPT, 12, rid="r", digest=b"body", ingress="i1", join=True)
    driver.handle(IngressLost(ingress="i1"))
    assert first.end.reason is third.end.reason is Reason.CLIENT_DISCONNECT
    driver.run()
    assert second.ids == expected(PROMPT, 12)


def test_a_parked_turn_can_be_joined(depth: int) -> None:
    """T2, S6: what waits for its session is running for its caller."""
    driver = Driver(depth=depth)
    driver.open()
    driver.turn("k0", PROMPT, 6)
    both = [
        driver.turn(key, PROMPT, 4, rid="r", digest=b"body", on_busy=OnBusy.QUEUE, join=True) for key in ("k1", "k2")
    ]
    driver.run()
    assert both[0].ids == both[1].ids
    assert driver.info().turns == 2


def test_joining_what_is_over_is_a_replay(depth: int) -> None:
    """T2: a committed turn is answered with its stored result, and an aborted one runs anew."""
    driver, _, _ = two_listeners(depth)
    driver.run()
    late = driver.turn("k3", PROMPT, 12, rid="r", digest=b"body", join=True)
    assert late.end.replayed
    assert late.ids == expected(PROMPT, 12)


# -- resuming ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivered", [1, 5, 11])
def test_a_resumed_request_goes_on_behind_what_was_delivered(depth: int, delivered: int) -> None:
    """T4, I3: no token is missing and none comes twice; usage counts all of them."""
    whole = expected(PROMPT, 12)
    driver = Driver(depth=depth)
    told = driver.submit("k", PROMPT, 12, resumed_ids=tuple(whole[:delivered]))
    driver.run()
    assert told.ids == whole
    assert (told.end.completion_tokens, told.end.prompt_tokens) == (12, len(PROMPT))
    assert driver.engine.snapshot().output_tokens == 12 - delivered


def test_sampling_goes_on_where_it_was(depth: int) -> None:
    """T4, I3: token n depends on the seed and n, also with penalties, which count what was delivered."""
    sampling = SamplingParams(max_tokens=12, temperature=1.0, seed=7, repetition_penalty=1.3)
    reference = Driver(depth=depth)
    whole = reference.submit("ref", PROMPT, sampling=sampling)
    reference.run()
    driver = Driver(depth=depth)
    told = driver.submit("k", PROMPT, sampling=sampling, resumed_ids=tuple(whole.ids[:6]))
    driver.run()
    assert told.ids == whole.ids


def test_a_grammar_goes_on_where_it_was(depth: int) -> None:
    """T4: what was delivered counts for the grammar."""
    grammar = Grammar(kind=GrammarKind.REGEX, text="[a-f]{2,8}")
    whole = expected_under(grammar, PROMPT)
    driver = Driver(depth=depth)
    told = driver.submit("k", PROMPT, 12, grammar=grammar, resumed_ids=tuple(whole[:2]))
    driver.run()
    assert told.ids == whole


@pytest.mark.parametrize("kind", ["length", "stop token", "stop string"])
def test_only_the_end_was_lost(kind: str) -> None:
    """T4, E7: the last token had been delivered; what it decides is decided again, without a forward pass."""
    whole = expected(PROMPT, 12)
    text = bytes(whole[3:6]).decode()
    sampling = {
        "length": SamplingParams(max_tokens=6),
        "stop token": SamplingParams(max_tokens=12, stop_token_ids=(whole[5],)),
        "stop string": SamplingParams(max_tokens=12, stop=(text,)),
    }[kind]
    reference = Driver()
    before = reference.submit("ref", PROMPT, sampling=sampling)
    reference.run()
    driver = Driver()
    told = driver.submit("k", PROMPT, sampling=sampling, resumed_ids=tuple(before.ids))
    assert (told.end.outcome, told.end.matched) == (before.end.outcome, before.end.matched)
    assert told.ids == before.ids
    assert driver.engine.snapshot().steps == 0


def test_a_resumed_turn_becomes_history_as_a_whole(depth: int) -> None:
    """T4, S2: the next turn continues from all of it."""
    whole = expected(PROMPT, 12)
    driver = Driver(depth=depth)
    driver.open()
    driver.turn("k", PROMPT, 12, resumed_ids=tuple(whole[:5]))
    driver.run()
    told = driver.turn("next", [1, 2], 4)
    driver.run()
    assert told.ids == expected([*PROMPT, *whole, 1, 2], 4)


def test_a_turn_that_was_stored_before_its_worker_died_is_replayed(depth: int) -> None:
    """T4, T2: it must not run twice; the whole comes from the stored result, and who has a part of it skips that."""
    driver = Driver(depth=depth)
    driver.open()
    first = driver.turn("k1", PROMPT, 12, rid="r", digest=b"body")
    driver.run()
    again = driver.turn("k2", PROMPT, 12, rid="r", digest=b"body", resumed_ids=tuple(first.ids[:5]))
    assert again.end.replayed
    assert again.ids == first.ids
    assert driver.info().turns == 1
