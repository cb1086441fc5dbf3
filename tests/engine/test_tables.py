"""State tables as tables: every pair is either listed and works, or raises with the story."""

from __future__ import annotations

import itertools

import pytest

from actors.engine import request as requests
from actors.engine import sessions
from actors.engine.clocks import Clock, Clocks
from actors.engine.kv.keys import PrefixKeys, tokens_in_common
from actors.engine.policy import ageing, share_prefill, victim
from actors.engine.recent import Recent
from actors.engine.request import IllegalTransition, Request, RequestState
from actors.engine.sessions import IllegalSessionTransition, Session, SessionState
from actors.engine.settings import EngineSettings
from actors.messages import SamplingParams, Submit


def request_in(state: RequestState, uid: int = 1, priority: int = 0) -> Request:
    submit = Submit(
        key="k", rid="r", ingress="i", tenant="t", input_ids=(1,), sampling=SamplingParams(), priority=priority
    )
    return Request(uid, submit, 0.0, state=state)


@pytest.mark.parametrize(("start", "end"), list(itertools.product(RequestState, RequestState)))
def test_every_pair_of_request_states(start: RequestState, end: RequestState) -> None:
    request = request_in(start)
    if end in requests.TRANSITIONS[start]:
        request.move(end, "test", 1.0)
        assert request.state is end
    else:
        with pytest.raises(IllegalTransition, match=r"1\.000 .* -> .*: test"):
            request.move(end, "test", 1.0)
        assert request.state is start


@pytest.mark.parametrize(("start", "end"), list(itertools.product(SessionState, SessionState)))
def test_every_pair_of_session_states(start: SessionState, end: SessionState) -> None:
    session = Session(1, "t", "s", 1, 1, state=start)
    if end in sessions.TRANSITIONS[start]:
        session.move(end, "test", 1.0)
        assert session.state is end
    else:
        with pytest.raises(IllegalSessionTransition, match="'s'"):
            session.move(end, "test", 1.0)


def test_ended_and_closed_are_for_ever() -> None:
    assert requests.TRANSITIONS[RequestState.ENDED] == frozenset()
    assert sessions.TRANSITIONS[SessionState.CLOSED] == frozenset()


@pytest.mark.parametrize(
    ("remaining", "waited", "budget", "grants"),
    [
        ([], [], 10, []),
        ([100], [0], 10, [10]),
        ([100, 4], [0, 0], 10, [6, 4]),
        ([100, 50, 4], [0, 0, 0], 10, [5, 1, 4]),
        ([2, 50], [0, 0], 10, [2, 8]),
        ([100, 100], [0, 0], 1, [1, 0]),
        ([3, 3, 3], [0, 0, 0], 9, [3, 3, 3]),
        ([20, 20, 20], [0, 0, 0], 30, [20, 10, 0]),
        ([100, 20, 20], [0, 0, 0], 30, [15, 15, 0]),
        ([20, 100, 4], [0, 0, 0], 30, [20, 6, 4]),
        ([100, 20, 20], [0, 0, 1], 30, [15, 0, 15]),
        ([100, 50, 4], [0, 46, 0], 10, [5, 2, 3]),
        ([100, 50, 4], [0, 45, 0], 10, [5, 1, 4]),
        ([100, 50, 50, 2], [0, 90, 80, 0], 20, [10, 8, 0, 2]),
        ([100, 50], [0, 90], 2, [1, 1]),
        ([100, 50, 4], [0, 90, 0], 2, [1, 0, 1]),
    ],
)
def test_prefill_budget_is_shared_so_that_nobody_is_stuck(
    remaining: list[int], waited: list[int], budget: int, grants: list[int]
) -> None:
    """P7: half is sure for the oldest, a quarter goes to whoever needs the least, less what it has waited, and the rest
    to whoever needs the least."""
    assert share_prefill(remaining, waited, budget) == grants


@pytest.mark.parametrize("mixed", [2, 4, 31, 112])
def test_a_prompt_has_waited_enough_after_eight_times_what_half_of_a_step_would_take_for_it(mixed: int) -> None:
    """P7: however little of a step prompts have."""
    settings = EngineSettings(page_size=4, num_pages=9, max_context=64, vocab_size=9, mixed_prefill_tokens=mixed)
    assert ageing(settings) * 8 * (1000 / (mixed / 2)) == pytest.approx(1000)


def test_victim_is_lowest_priority_then_latest() -> None:
    """K4."""
    batch = [
        request_in(RequestState.DECODE, uid, priority) for uid, priority in [(1, 0), (2, -1), (3, -1), (4, 0), (5, 2)]
    ]
    assert victim(batch).uid == 3
    assert victim([]) is None


def test_recent_forgets_in_time_and_in_number() -> None:
    recent = Recent(ttl_s=10.0, limit=2)
    recent.add("a", 0.0)
    assert recent.has("a", 9.9)
    assert not recent.has("a", 10.0)
    recent.add("b", 1.0)
    recent.add("c", 2.0)
    assert not recent.has("a", 2.0)
    assert recent.take("b", 2.0)
    assert not recent.take("b", 2.0)
    recent.expire(12.0)
    assert len(recent) == 0


def test_clocks_ring_in_order() -> None:
    clocks = Clocks()
    clocks.set(2.0, Clock.RUNNING, 1)
    clocks.set(1.0, Clock.WAITING, 2)
    assert clocks.next() == 1.0
    assert clocks.take_due(2.0) == [(Clock.WAITING, 2), (Clock.RUNNING, 1)]
    assert clocks.next() is None


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize(("held", "asked"), [((), (1,)), ((1, 2), (1, 2, 3)), ((1, 2, 3), (1, 9, 3)), ((4,), (5,))])
def test_what_a_slot_shares_with_a_prompt_is_known_by_content(
    held: tuple[int, ...], asked: tuple[int, ...], page_size: int
) -> None:
    """K1, S3: all of it, or whole pages; never a token that differs, and nothing of another namespace's pages."""
    full = len(held) // page_size
    keys, tail = PrefixKeys(b"root", held, page_size).first(full), held[full * page_size :]
    common = tokens_in_common(PrefixKeys(b"root", asked, page_size), keys, tail, page_size)
    assert held[:common] == asked[:common]
    same = next((i for i, (a, b) in enumerate(zip(held, asked, strict=False)) if a != b), min(len(held), len(asked)))
    assert common in (same, same // page_size * page_size)
    elsewhere = tokens_in_common(PrefixKeys(b"other", asked, page_size), keys, tail, page_size)
    assert elsewhere == (0 if full else common)
