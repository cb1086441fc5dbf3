"""Fork and rollback (rule S12): what the sessions hold afterwards, and what they share of their KV."""

from __future__ import annotations

import pytest

from actors.messages import OnBusy, Outcome, Reason, SessionMode
from tests.engine.driver import Driver, Told, expected


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(params=[1, 4, 16], ids=["page1", "page4", "page16"])
def driver(request: pytest.FixtureRequest, depth: int) -> Driver:
    """Without a prefix index: what is cached then is what sessions hold."""
    return Driver(depth=depth, page_size=request.param, kv_tokens=320, max_context=256, prefix_cache=False)


def finished(driver: Driver, key: str, prompt: list[int], **fields: object) -> Told:
    told = driver.turn(key, prompt, **fields)
    driver.run()
    assert told.end.outcome is not Outcome.ABORT, told.end
    return told


def fill(driver: Driver, count: int, size: int = 5, session_id: str = "s") -> list[list[int]]:
    """Turns 1 … count of a session, each its own tokens. Their contexts, from that of no turn on."""
    contexts: list[list[int]] = [[]]
    for number in range(1, count + 1):
        prompt = [number] * size
        told = finished(driver, f"r{number}", prompt, session_id=session_id)
        contexts.append(contexts[-1] + prompt + told.ids)
    return contexts


def whole_pages(driver: Driver, tokens: int) -> int:
    size = driver.engine.settings.page_size
    return tokens // size * size


def held(driver: Driver) -> int:
    return driver.engine.core.kv.counts.session_held


def emptied(driver: Driver, *names: str) -> bool:
    """K6: at rest with all sessions closed everything is free but the index, and flush empties that."""
    for name in names:
        assert driver.close(name).known
    driver.engine.core.kv.flush()
    counts = driver.engine.core.kv.counts
    return counts.free == counts.total


@pytest.mark.parametrize("prefix_cache", [True, False], ids=["index", "no_index"])
def test_fork_and_rollback_while_the_original_runs(depth: int, prefix_cache: bool) -> None:
    """S12, K6, case N32: whole, at its size."""
    driver = Driver(
        depth=depth, page_size=16, kv_tokens=16384, max_context=8192, max_step_tokens=512, prefix_cache=prefix_cache
    )
    driver.open()
    contexts = fill(driver, 5, size=592)
    assert [len(one) for one in contexts] == [0, 600, 1200, 1800, 2400, 3000]
    before = held(driver)
    driver.fork("f", "r3")
    assert held(driver) == before, "the common prefix is held once"

    sixth = driver.turn("r6", [60] * 20)
    fourth = driver.turn("r4b", [61] * 20, session_id="f")
    driver.run()
    assert sixth.ids == expected(contexts[5] + [60] * 20, 8)
    assert fourth.ids == expected(contexts[3] + [61] * 20, 8)
    assert fourth.end.prompt_tokens == 1800 + 20
    assert 1800 // 16 * 16 <= fourth.end.cached_tokens <= 1800
    assert held(driver) <= -(-3028 // 16) + -(-1828 // 16) - 1800 // 16, "what they share counts once"

    assert driver.rollback("r2").reason is None
    again = finished(driver, "r3b", [62] * 20)
    assert again.end.prompt_tokens == 1200 + 20
    assert again.end.cached_tokens >= 1200 // 16 * 16
    assert again.ids == expected(contexts[2] + [62] * 20, 8)

    driver.close("s")
    context = contexts[3] + [61] * 20 + fourth.ids
    last = finished(driver, "r5b", [63] * 20, session_id="f")
    assert last.ids == expected(context + [63] * 20, 8)
    assert last.end.cached_tokens in (len(context), len(context) - 1)
    assert emptied(driver, "f")


# -- fork --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(SessionMode))
def test_a_fork_goes_its_own_way(driver: Driver, mode: SessionMode) -> None:
    """S12: neither session shows a token of the other, turn by turn."""
    driver.open(mode=mode)
    contexts = fill(driver, 3)
    driver.fork("f", "r2")
    info = driver.info("f")
    assert info.mode is mode
    assert (info.turns, info.head, info.tokens) == (2, "r2", len(contexts[2]))
    assert info.resident_tokens == whole_pages(driver, len(contexts[2]))
    mine, theirs = contexts[3], contexts[2]
    for number in range(3):
        told = driver.turn(f"s{number}", [100 + number])
        other = driver.turn(f"f{number}", [200 + number], session_id="f")
        driver.run()
        mine, theirs = [*mine, 100 + number], [*theirs, 200 + number]
        assert (told.ids, other.ids) == (expected(mine, 8), expected(theirs, 8))
        mine, theirs = mine + told.ids, theirs + other.ids
    assert emptied(driver, "s", "f")


def test_the_first_turn_of_a_fork_finds_the_whole_pages_it_shares(driver: Driver) -> None:
    """S12, K1: and of its second turn all but the last token is there, as for any session."""
    driver.open()
    contexts = fill(driver, 3)
    driver.fork("f", "r2")
    first = finished(driver, "f1", [9] * 3, session_id="f")
    assert first.end.cached_tokens == whole_pages(driver, len(contexts[2]))
    context = contexts[2] + [9] * 3 + first.ids
    second = finished(driver, "f2", [8], session_id="f")
    assert second.end.cached_tokens in (len(context), len(context) - 1)
    undisturbed = finished(driver, "r4", [7])
    assert undisturbed.end.cached_tokens in (len(contexts[3]), len(contexts[3]) - 1)


def test_a_fork_may_say_nothing_new(driver: Driver) -> None:
    """S4: empty input is legal, and its last token is computed again: not in a page that the source reads, though."""
    driver.open()
    contexts = fill(driver, 2, size=24)
    driver.fork("f", "r1")
    told = finished(driver, "f1", [], session_id="f")
    assert len(contexts[1]) == 32
    assert told.ids == expected(contexts[1], 8)
    assert told.end.cached_tokens == whole_pages(driver, 31)
    assert finished(driver, "r3", [5]).ids == expected(contexts[2] + [5], 8)


def test_a_fork_of_another_branch_finds_its_pages_by_content(depth: int) -> None:
    """K3: the source's slot has only the root in common with it; the index has the rest."""
    driver = Driver(depth=depth, page_size=4, kv_tokens=320)
    driver.open(mode=SessionMode.TREE)
    root = finished(driver, "root", [1] * 8)
    left = finished(driver, "left", [2] * 20, parent="root")
    finished(driver, "right", [3] * 20, parent="root")
    driver.fork("f", "left")
    context = [1] * 8 + root.ids + [2] * 20 + left.ids
    assert driver.info("f").resident_tokens == 16
    told = finished(driver, "f1", [4], session_id="f")
    assert told.end.cached_tokens == whole_pages(driver, len(context) - 1)
    assert told.ids == expected([*context, 4], 8)


def test_a_fork_of_a_branch_leaves_the_other_branches_out(driver: Driver) -> None:
    """S12, S3: it has the turn's chain, by its rids, and nothing else."""
    driver.open(mode=SessionMode.TREE)
    root = finished(driver, "root", [1] * 20)
    left = finished(driver, "left", [2] * 20, parent="root")
    finished(driver, "right", [3] * 20, parent="root")
    driver.fork("f", "left")
    assert driver.info("f").turns == 2
    context = [1] * 20 + root.ids
    again = finished(driver, "f1", [4], session_id="f", parent="root")
    assert again.ids == expected([*context, 4], 8)
    more = finished(driver, "f2", [5], session_id="f", parent="left")
    assert more.ids == expected(context + [2] * 20 + left.ids + [5], 8)
    refused = driver.turn("f3", [6], session_id="f", parent="right")
    assert refused.end.reason is Reason.PARENT_UNKNOWN
    replayed = driver.turn("again", [2] * 20, rid="left", session_id="f", parent="root")
    assert (replayed.end.replayed, replayed.ids) == (True, left.ids)


def test_a_fork_while_a_turn_runs_has_what_was_committed(driver: Driver) -> None:
    """S12, S2: the running turn is not history; it is not disturbed either."""
    driver.open()
    contexts = fill(driver, 2)
    running = driver.turn("r3", [3] * 9, 20)
    for _ in range(4):
        driver.step()
    assert running.end is None
    driver.fork("f")
    told = driver.turn("f1", [4] * 9, session_id="f")
    driver.run()
    assert told.ids == expected(contexts[2] + [4] * 9, 8)
    assert running.ids == expected(contexts[2] + [3] * 9, 20)
    assert told.end.cached_tokens == whole_pages(driver, len(contexts[2]) - 1)


def test_closing_the_original_keeps_the_fork(driver: Driver) -> None:
    """S12, S9, K6: shared pages live as long as somebody holds them."""
    driver.open()
    contexts = fill(driver, 2, size=20)
    driver.fork("f")
    shared = driver.info("f").resident_tokens
    driver.close("s")
    assert held(driver) == shared // driver.engine.settings.page_size
    told = finished(driver, "f1", [7], session_id="f")
    assert (told.ids, told.end.cached_tokens) == (expected(contexts[2] + [7], 8), shared)
    assert emptied(driver, "f")


def test_a_fork_whose_source_is_not_here_starts_from_history(driver: Driver) -> None:
    """S1: KV is a cache; the fork of a session that another worker has, or has forgotten, costs a prefill."""
    driver.open()
    contexts = fill(driver, 2)
    driver.engine.core.kv.flush()
    driver.fork("f")
    assert driver.info("f").resident_tokens == 0
    assert finished(driver, "f1", [7], session_id="f").ids == expected(contexts[2] + [7], 8)


def test_a_turn_that_overtakes_the_news_of_its_fork_runs(driver: Driver) -> None:
    """T6: it waits for the history, wherever the news is."""
    driver.open()
    contexts = fill(driver, 2)
    driver.hold_store = True
    driver.fork("f")
    told = driver.turn("f1", [7], session_id="f")
    assert driver.info("f").state == "loading"
    driver.hold_store = False
    while driver.effects:
        driver.answer_store()
    driver.run()
    assert told.ids == expected(contexts[2] + [7], 8)


# -- rollback ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(SessionMode))
def test_the_next_turn_goes_on_from_where_the_rollback_went(driver: Driver, mode: SessionMode) -> None:
    """S12, K1: later turns are gone, the whole pages of what is left are there."""
    driver.open(mode=mode)
    contexts = fill(driver, 4)
    answer = driver.rollback("r2")
    assert (answer.reason, answer.dropped) == (None, 2)
    assert (answer.info.head, answer.info.turns, answer.info.tokens) == ("r2", 2, len(contexts[2]))
    assert answer.info.resident_tokens == whole_pages(driver, len(contexts[2]))
    assert held(driver) == answer.info.resident_tokens // driver.engine.settings.page_size, "the rest is free again"
    told = finished(driver, "new", [99] * 3)
    assert (told.end.turn, told.end.prompt_tokens) == (3, len(contexts[2]) + 3)
    assert told.end.cached_tokens == whole_pages(driver, len(contexts[2]))
    assert told.ids == expected(contexts[2] + [99] * 3, 8)
    assert driver.info().turns == 3
    assert emptied(driver, "s")


def test_a_dropped_turn_may_be_sent_again(driver: Driver) -> None:
    """T2: it is not committed any more, so it runs anew, and it may say something else."""
    driver.open()
    contexts = fill(driver, 3)
    driver.rollback("r1")
    told = finished(driver, "again", [50], rid="r2")
    assert not told.end.replayed
    assert told.ids == expected(contexts[1] + [50], 8)


def test_a_rollback_in_a_tree_leaves_other_branches(driver: Driver) -> None:
    """S12, S3: descendants are dropped, as by `replace`; what the slot holds of another branch stays good."""
    driver.open(mode=SessionMode.TREE)
    root = finished(driver, "root", [1] * 20)
    left = finished(driver, "left", [2] * 9, parent="root")
    finished(driver, "below", [3] * 9, parent="left")
    right = finished(driver, "right", [4] * 9, parent="root")
    resident = driver.info().resident_tokens
    assert driver.rollback("left").dropped == 1
    assert (driver.info().turns, driver.info().head) == (3, "left")
    assert driver.info().resident_tokens == resident
    context = [1] * 20 + root.ids
    assert finished(driver, "a", [5]).ids == expected(context + [2] * 9 + left.ids + [5], 8)
    assert finished(driver, "b", [6], parent="right").ids == expected(context + [4] * 9 + right.ids + [6], 8)
    assert driver.turn("c", [7], parent="below").end.reason is Reason.PARENT_UNKNOWN


def test_a_rollback_does_not_touch_what_a_fork_shares(driver: Driver) -> None:
    """K6: pages that two sessions hold are written by neither."""
    driver.open()
    contexts = fill(driver, 4)
    driver.fork("f")
    driver.rollback("r2")
    mine = driver.turn("mine", [90] * 30)
    theirs = driver.turn("theirs", [91], session_id="f")
    driver.run()
    assert mine.ids == expected(contexts[2] + [90] * 30, 8)
    assert theirs.ids == expected(contexts[4] + [91], 8)
    assert theirs.end.cached_tokens == whole_pages(driver, len(contexts[4]) - 1)
    assert emptied(driver, "s", "f")


def test_a_rollback_behind_an_aborted_turn(depth: int) -> None:
    """A7, K6: the step in flight still names the pages that the slot gives up."""
    driver = Driver(depth=depth, page_size=4, kv_tokens=320, prefix_cache=False)
    driver.open()
    contexts = fill(driver, 3)
    driver.turn("r4", [4] * 9, 50)
    for _ in range(4):
        driver.step()
    driver.launch()
    driver.abort(rids=("r4",))
    assert driver.rollback("r1").reason is None
    told = driver.turn("new", [99])
    driver.run()
    assert told.ids == expected(contexts[1] + [99], 8)
    assert emptied(driver, "s")


def test_a_rollback_to_the_head_changes_nothing(driver: Driver) -> None:
    driver.open()
    contexts = fill(driver, 2)
    resident = driver.info().resident_tokens
    answer = driver.rollback("r2")
    assert (answer.reason, answer.dropped, answer.info.resident_tokens) == (None, 0, resident)
    assert finished(driver, "r3", [1]).end.cached_tokens in (len(contexts[2]), len(contexts[2]) - 1)


def test_a_refused_rollback_changes_nothing(driver: Driver) -> None:
    """S12, S7: while a turn runs, to a turn that is not there, of a session that closes."""
    driver.open()
    contexts = fill(driver, 2)
    assert driver.rollback("r9").reason is Reason.PARENT_UNKNOWN
    running = driver.turn("r3", [3])
    assert driver.rollback("r1").reason is Reason.SESSION_BUSY
    assert driver.rollback("r3").reason is Reason.SESSION_BUSY
    driver.run()
    assert running.ids == expected(contexts[2] + [3], 8)
    assert driver.info().turns == 3
    driver.turn("r4", [4])
    driver.step()
    driver.close()
    assert driver.rollback("r1").reason is Reason.SESSION_CLOSING
    driver.run()


# -- the store ---------------------------------------------------------------------------------------------------------


def answered(driver: Driver) -> None:
    driver.hold_store = False
    while driver.effects:
        driver.answer_store()


def test_turns_wait_while_the_store_rolls_back(driver: Driver) -> None:
    """T1, S6: history changes when the store has it; who comes meanwhile goes on from the new head."""
    driver.open()
    contexts = fill(driver, 3)
    driver.hold_store = True
    assert driver.rollback("r1") is None
    told = driver.turn("r4", [4])
    aborted = driver.turn("r5", [5], on_busy=OnBusy.QUEUE)
    assert driver.launch() is None
    assert driver.rollback("r2").ask_again
    assert [hit.rid for hit in driver.abort(rids=("r5",)).hit] == ["r5"]
    assert aborted.end.reason is Reason.CLIENT_ABORT
    answered(driver)
    driver.run()
    assert told.ids == expected(contexts[1] + [4], 8)


def test_a_rollback_that_the_store_failed_is_read_again(driver: Driver) -> None:
    """T6: whether it was done is unknown, so the store says what history is."""
    driver.open()
    contexts = fill(driver, 3)
    driver.store_error = "unreachable"
    assert driver.rollback("r1").reason is Reason.INTERNAL
    driver.store_error = ""
    assert driver.info() is None
    assert finished(driver, "r4", [4]).ids == expected(contexts[3] + [4], 8)


def test_a_rollback_of_a_session_that_is_not_here_is_asked_again(driver: Driver) -> None:
    """T4: after a move the new owner reads the history first."""
    driver.open()
    contexts = fill(driver, 3)
    driver.store_error = "unreachable"
    driver.rollback("r1")
    driver.store_error = ""
    driver.hold_store = True
    assert driver.rollback("r2").ask_again
    answered(driver)
    assert driver.rollback("r2").dropped == 1
    assert finished(driver, "r4", [4]).ids == expected(contexts[2] + [4], 8)


def test_a_rollback_under_old_numbers_is_asked_again(driver: Driver) -> None:
    """T3: by the engine's own knowledge, and by the store's."""
    driver.open()
    fill(driver, 2)
    assert driver.rollback("r1", epoch=0).ask_again
    driver.stale = True
    assert driver.rollback("r1").ask_again
    assert driver.info() is None


def test_closing_while_the_store_rolls_back(driver: Driver) -> None:
    """S9: both are answered, and nothing is left."""
    driver.open()
    fill(driver, 3)
    driver.hold_store = True
    driver.rollback("r1")
    ask = driver.last_ask
    driver.close()
    answered(driver)
    assert driver.replies[ask].reason is Reason.SESSION_CLOSING
    assert driver.info() is None
    driver.engine.core.kv.flush()
    assert driver.engine.core.kv.counts.free == driver.engine.core.kv.counts.total


def test_a_rollback_starts_the_idle_clock_anew(driver: Driver) -> None:
    """S8: a session that somebody has just rolled back is in use."""
    driver.open(idle_timeout_s=10.0)
    fill(driver, 2)
    driver.tick(9.0)
    driver.rollback("r1")
    driver.tick(9.0)
    assert driver.info() is not None
    driver.tick(1.1)
    assert driver.info() is None


def test_the_idle_clock_stands_still_while_the_store_rolls_back(driver: Driver) -> None:
    driver.open(idle_timeout_s=10.0)
    fill(driver, 2)
    driver.hold_store = True
    driver.rollback("r1")
    driver.tick(30.0)
    answered(driver)
    assert driver.info().state == "idle"
    driver.tick(10.1)
    assert driver.info() is None


def test_a_fork_does_not_share_the_page_that_is_not_full() -> None:
    """S12, K6: the source goes on writing in it."""
    driver = Driver(page_size=4, max_step_tokens=64)
    driver.open()
    told = finished(driver, "r1", list(range(12)))
    assert driver.info().resident_tokens % 4 == 3
    driver.fork("f")
    assert driver.info("f").resident_tokens == driver.info().resident_tokens // 4 * 4
    context = [*range(12), *told.ids]
    ends = [driver.turn("a", [1], 6), driver.turn("b", [2], 6, session_id="f")]
    driver.run()
    assert [end.ids for end in ends] == [expected([*context, 1], 6), expected([*context, 2], 6)]
