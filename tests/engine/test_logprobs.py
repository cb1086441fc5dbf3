"""Log probabilities beside the tokens: one for each, once, to everybody who hears them, and only where asked for."""

from __future__ import annotations

import pytest

from actors.messages import SamplingParams
from actors.runner.toy import toy_logprobs
from tests.engine.driver import Driver, expected

PROMPT = list(b"a question")
ASKED = SamplingParams(max_tokens=12, logprobs=2)


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


def test_each_token_has_its_own(depth: int) -> None:
    driver = Driver(depth=depth)
    asked, plain = driver.submit("a", PROMPT, sampling=ASKED), driver.submit("b", PROMPT, 12)
    driver.run()
    assert asked.ids == plain.ids == expected(PROMPT, 12)
    assert asked.logprobs == [toy_logprobs(token, 2) for token in asked.ids]
    assert plain.logprobs == []


def test_who_joins_hears_those_of_the_whole_stream(depth: int) -> None:
    """T2."""
    driver = Driver(depth=depth)
    driver.open()
    first = driver.turn("k1", PROMPT, rid="r", digest=b"body", ingress="i1", sampling=ASKED)
    for _ in range(6):
        driver.step()
    second = driver.turn("k2", PROMPT, rid="r", digest=b"body", ingress="i2", join=True, sampling=ASKED)
    driver.run()
    assert first.logprobs == second.logprobs == [toy_logprobs(token, 2) for token in first.ids]


def test_a_preempted_request_tells_none_twice(depth: int) -> None:
    """K4."""
    driver = Driver(depth=depth, kv_tokens=112, forecast=False)
    asked = SamplingParams(max_tokens=40, logprobs=1)
    told = [driver.submit(f"r{n}", [n] * 8, sampling=asked) for n in range(4)]
    driver.run()
    assert driver.engine.snapshot().preemptions > 0
    for one in told:
        assert one.logprobs == [toy_logprobs(token, 1) for token in one.ids]


def test_what_was_made_elsewhere_has_none(depth: int) -> None:
    """T4: of a resumed request, those of the tokens that are made here; who joins hears no more than there is."""
    driver = Driver(depth=depth)
    ids = expected(PROMPT, 12)
    fields = {"rid": "r", "digest": b"body", "sampling": ASKED}
    first = driver.submit("k1", PROMPT, resumed_ids=tuple(ids[:5]), **fields)
    for _ in range(3):
        driver.step()
    second = driver.submit("k2", PROMPT, join=True, **fields)
    driver.run()
    assert first.ids == second.ids == ids
    assert first.logprobs == second.logprobs == [toy_logprobs(token, 2) for token in ids[5:]]
