"""Log probabilities of prompts: whatever is cached, cut, preempted or shared, each token is told once, by the KV of all
that stands before it. The toy runner's are a hash of that KV, so that one wrong page shows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.engine.plan import StepPlan
from actors.engine.planner import MAX_SCORED
from actors.engine.scoring import MAX_NUMBERS
from actors.messages import Outcome, Reason, SamplingParams, SessionMode
from actors.runner.base import StepHandle
from actors.runner.toy import toy_prompt_scores
from tests.engine.driver import Driver, expected

PROMPT = [*range(60, 100), *range(50, 70)]


def asking(begin: int, max_tokens: int = 8, count: int = 0, named: tuple[int, ...] = ()) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, logprobs=count, logprob_ids=named, prompt_logprobs_from=begin)


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.mark.parametrize("begin", [0, 1, 2, 15, 16, 17, 58, 59, 60])
@pytest.mark.parametrize("max_tokens", [0, 1, 8])
def test_every_token_from_there_on_is_told_once(begin: int, max_tokens: int, depth: int) -> None:
    """E1, E5: the first of all has none; without a reply the prompt alone is computed."""
    driver = Driver(depth=depth)
    told = driver.submit("a", PROMPT, sampling=asking(begin, max_tokens, 2, (7, 9)))
    driver.run()
    assert told.scores == toy_prompt_scores(PROMPT, begin, 2, (7, 9))
    assert told.ids == expected(PROMPT, max_tokens)
    assert told.end is not None
    assert (told.end.outcome, told.end.prompt_tokens) == (Outcome.LENGTH, len(PROMPT))


def test_a_prompt_of_one_token_has_none_to_compute(depth: int) -> None:
    driver = Driver(depth=depth)
    told = driver.submit("a", [5], sampling=asking(0, 0))
    assert told.scores == [(5, None)]
    assert told.end is not None
    assert told.end.outcome is Outcome.LENGTH


@pytest.mark.parametrize(("begin", "cached"), [(0, 0), (1, 0), (30, 28), (59, 56), (60, 56)])
def test_what_is_cached_is_used_up_to_where_they_begin(begin: int, cached: int, depth: int) -> None:
    """K3: the logits before the first of them are wanted, and so are those that follow."""
    driver = Driver(depth=depth)
    driver.submit("first", PROMPT)
    driver.run()
    told = driver.submit("a", PROMPT, sampling=asking(begin))
    driver.run()
    assert told.scores == toy_prompt_scores(PROMPT, begin)
    assert told.ids == expected(PROMPT, 8)
    assert told.end is not None
    assert told.end.cached_tokens == cached


def test_nobody_waits_for_a_prefill_that_is_of_no_use(depth: int) -> None:
    """K3, P7: two that are to be scored compute the same prompt side by side, and hold it once afterwards."""
    driver = Driver(depth=depth, worth_sharing_tokens=8, max_step_tokens=8)
    told = [driver.submit(name, PROMPT, sampling=asking(0)) for name in "abc"]
    driver.run()
    for one in told:
        assert one.scores == toy_prompt_scores(PROMPT, 0)


def test_a_preempted_request_tells_none_twice(depth: int) -> None:
    """K4: in the midst of its prompt, too."""
    driver = Driver(depth=depth, kv_tokens=88, forecast=False, max_step_tokens=6)
    prompts = [[n] * 24 for n in range(4)]
    told = [driver.submit(f"r{n}", prompt, sampling=asking(0, 12, 1)) for n, prompt in enumerate(prompts)]
    driver.run()
    assert driver.engine.snapshot().preemptions > 0
    for prompt, one in zip(prompts, told, strict=True):
        assert one.scores == toy_prompt_scores(prompt, 0, 1)
        assert one.ids == expected(prompt, 12)


def test_a_turn_is_scored_on_the_restored_prompt(depth: int) -> None:
    """S1, K1: session case S21: from within the history on."""
    driver = Driver(depth=depth)
    driver.open()
    first = driver.turn("k1", PROMPT, rid="r1")
    driver.run()
    context = [*PROMPT, *first.ids]
    whole = [*context, 1, 2, 3]
    told = driver.turn("k2", [1, 2, 3], rid="r2", sampling=asking(10))
    driver.run()
    assert told.scores == toy_prompt_scores(whole, 10)
    assert told.ids == expected(whole, 8)
    last = driver.turn("k3", [4], rid="r3")
    driver.run()
    assert last.end is not None
    assert last.end.cached_tokens in (len(whole) + 7, len(whole) + 8)
    assert last.ids == expected([*whole, *told.ids, 4], 8)


def test_scoring_takes_pages_of_its_own(depth: int) -> None:
    """K2: what the slot holds is not written again, be it the same: other pages are, until the turn has committed."""
    driver = Driver(depth=depth)
    driver.open()
    driver.turn("k1", PROMPT, rid="r1")
    driver.run()
    kv = driver.engine.core.kv
    (slot,) = kv.slots.all().values()
    driver.turn("k2", [1, 2, 3], rid="r2", sampling=asking(10))
    plan = driver.launch()
    assert plan is not None
    written = {item.page_table[at // 4] for item in plan.each() for at in range(item.start, item.start + item.count)}
    assert not written & set(slot.pages)
    driver.run()


def test_an_aborted_one_leaves_the_slot_as_it_was(depth: int) -> None:
    """K2."""
    driver = Driver(depth=depth, max_step_tokens=8)
    driver.open()
    first = driver.turn("k1", PROMPT, rid="r1")
    driver.run()
    driver.turn("k2", [1, 2, 3], rid="r2", sampling=asking(0))
    for _ in range(3):
        driver.step()
    driver.abort(rids=("r2",))
    driver.run()
    last = driver.turn("k3", [4], rid="r3")
    driver.run()
    assert last.end is not None
    assert last.end.cached_tokens in (len(PROMPT) + 7, len(PROMPT) + 8)
    assert last.ids == expected([*PROMPT, *first.ids, 4], 8)


def test_a_turn_without_a_reply_commits_its_prompt(depth: int) -> None:
    """S2, K1: the next one goes on from it."""
    driver = Driver(depth=depth)
    driver.open()
    told = driver.turn("k1", PROMPT, rid="r1", sampling=asking(0, 0))
    driver.run()
    assert told.scores == toy_prompt_scores(PROMPT, 0)
    last = driver.turn("k2", [4, 5], rid="r2")
    driver.run()
    assert last.end is not None
    assert last.end.cached_tokens in (len(PROMPT) - 1, len(PROMPT))
    assert last.ids == expected([*PROMPT, 4, 5], 8)


def test_a_hibernating_session_is_woken_as_far_as_it_is_of_use(depth: int) -> None:
    """K7: what is behind the first of them is computed anyway, and is not read for nothing, again and again."""
    driver = Driver(depth=depth, hibernate_below=1.0)
    driver.open()
    first = driver.turn("k1", PROMPT, rid="r1")
    driver.run()
    uid = next(iter(driver.engine.core.images))
    driver.engine.core.kv.drop_slot(uid)
    driver.engine.core.kv.pool.forget_prefixes()
    whole = [*PROMPT, *first.ids, 9]
    told = driver.turn("k2", [9], rid="r2", sampling=asking(30))
    driver.run()
    assert told.scores == toy_prompt_scores(whole, 30)
    assert told.end is not None
    assert told.end.cached_tokens == 28


@pytest.mark.parametrize("mode", list(SessionMode))
def test_those_from_beyond_the_restored_prompt_are_refused(mode: SessionMode, depth: int) -> None:
    """S7: session case N18; the session is unharmed, and nothing is computed."""
    driver = Driver(depth=depth)
    driver.open(mode=mode)
    first = driver.turn("k1", PROMPT, rid="r1")
    driver.run()
    steps = driver.engine.snapshot().steps
    told = driver.turn("k2", [1, 2, 3], rid="r2", sampling=asking(len(PROMPT) + 8 + 4))
    assert told.end is not None
    assert (told.end.reason, told.end.param) == (Reason.INVALID, "logprob_start_len")
    assert driver.engine.snapshot().steps == steps
    last = driver.turn("k3", [4], rid="r3")
    driver.run()
    assert last.ids == expected([*PROMPT, *first.ids, 4], 8)
    assert last.end is not None
    assert last.end.cached_tokens in (len(PROMPT) + 7, len(PROMPT) + 8)


def test_more_than_can_be_told_are_refused() -> None:
    """S7, S10: with the numbers, and before anything is computed."""
    driver = Driver(max_context=2**17, kv_tokens=2**15)
    prompt = [1] * (MAX_NUMBERS // 16 + 1)
    told = driver.submit("a", prompt, sampling=asking(0, 1, 15))
    assert told.end is not None
    assert (told.end.reason, told.end.param) == (Reason.INVALID, "logprob_start_len")
    assert str(16 * len(prompt)) in told.end.message


def test_a_step_scores_no_more_than_there_is_room_for(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """P7: a row of logits each; others of the step go on meanwhile."""
    driver = Driver(depth=depth, max_step_tokens=4 * MAX_SCORED, max_context=4096, kv_tokens=8192)
    prompts = [[n, *range(200), *range(200), *range(100)] for n in range(3)]
    other = driver.submit("other", PROMPT)
    told = [driver.submit(f"r{n}", prompt, sampling=asking(0, 1)) for n, prompt in enumerate(prompts)]
    rows: list[int] = []
    launch = driver.runner.launch

    def counted(plan: StepPlan) -> StepHandle:
        rows.append(sum(len(item.scored) for item in plan.each()))
        return launch(plan)

    monkeypatch.setattr(driver.runner, "launch", counted)
    driver.run()
    assert max(rows) == MAX_SCORED
    assert sum(rows) == sum(len(prompt) - 1 for prompt in prompts)
    for prompt, one in zip(prompts, told, strict=True):
        assert one.scores == toy_prompt_scores(prompt, 0)
    assert other.ids == expected(PROMPT, 8)


def test_a_short_one_is_not_stuck_behind_a_long_one(depth: int) -> None:
    """P7: what can be scored in a step is shared as its tokens are."""
    driver = Driver(depth=depth, max_step_tokens=4 * MAX_SCORED, max_context=16 * MAX_SCORED, kv_tokens=32 * MAX_SCORED)
    long = driver.submit("long", [n % 250 for n in range(12 * MAX_SCORED)], sampling=asking(0, 1))
    driver.step()
    short = driver.submit("short", PROMPT, sampling=asking(0, 1))
    for _ in range(3):
        driver.step()
    assert short.scores == toy_prompt_scores(PROMPT, 0)
    assert long.end is None
    driver.run()
    assert long.scores == toy_prompt_scores([n % 250 for n in range(12 * MAX_SCORED)], 0)


@pytest.mark.parametrize("after", [0, 1, 3, 12])
def test_who_joins_hears_all_of_them(after: int, depth: int) -> None:
    """T2: in the midst of the prompt, and behind it."""
    driver = Driver(depth=depth, max_step_tokens=8)
    driver.open()
    first = driver.turn("k1", PROMPT, rid="r", digest=b"body", ingress="i1", sampling=asking(0))
    for _ in range(after):
        driver.step()
    second = driver.turn("k2", PROMPT, rid="r", digest=b"body", ingress="i2", join=True, sampling=asking(0))
    driver.run()
    assert first.scores == second.scores == toy_prompt_scores(PROMPT, 0)
    assert first.ids == second.ids == expected(PROMPT, 8)


def test_who_goes_on_elsewhere_was_told_of_the_prompt_before(depth: int) -> None:
    """T4."""
    driver = Driver(depth=depth)
    ids = expected(PROMPT, 8)
    told = driver.submit("k1", PROMPT, sampling=asking(0), resumed_ids=tuple(ids[:3]))
    driver.run()
    assert told.ids == ids
    assert told.scores == []


def test_unknown_tokens_are_refused() -> None:
    """I1."""
    driver = Driver()
    told = driver.submit("a", PROMPT, sampling=asking(0, named=(driver.runner.info.vocab_size,)))
    assert told.end is not None
    assert (told.end.reason, told.end.param) == (Reason.INVALID, "token_ids_logprob")


@settings(deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(0, 4), st.booleans()), min_size=1, max_size=6
    ),
    kv_tokens=st.sampled_from([64, 128, 512]),
    step=st.integers(1, 24),
    depth=st.integers(0, 1),
)
def test_whatever_runs_beside(
    requests: list[tuple[int, int, int, bool]], kv_tokens: int, step: int, depth: int
) -> None:
    """K3, K4, I3: prompts that begin alike, scored or not, in a small cache and odd chunks."""
    driver = Driver(depth=depth, kv_tokens=kv_tokens, max_step_tokens=step, worth_sharing_tokens=4)
    told = []
    for number, (length, begin, max_tokens, scored) in enumerate(requests):
        prompt = list(range(length))
        sampling = asking(min(begin, length), max_tokens) if scored else SamplingParams(max_tokens=max_tokens)
        told.append((prompt, sampling, driver.submit(f"r{number}", prompt, sampling=sampling)))
        driver.step()
    driver.run()
    for prompt, sampling, one in told:
        begin = sampling.prompt_logprobs_from
        assert one.scores == ([] if begin is None else toy_prompt_scores(prompt, begin))
        assert one.ids == expected(prompt, sampling.max_tokens or 0)
