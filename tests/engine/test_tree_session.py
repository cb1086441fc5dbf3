"""Tree sessions: branches, replace, offset, drop_previous_output (rule S3)."""

from __future__ import annotations

import pytest

from actors.messages import OnBusy, Outcome, Reason, SessionMode
from tests.engine.driver import Driver, Told, expected

A, B, C = list(range(1, 11)), list(range(20, 27)), list(range(40, 45))


@pytest.fixture(params=[(0, 4), (1, 4), (0, 16)], ids=["depth0", "depth1", "page16"])
def driver(request: pytest.FixtureRequest) -> Driver:
    depth, page_size = request.param
    driver = Driver(depth=depth, page_size=page_size)
    driver.open(mode=SessionMode.TREE)
    return driver


def finished(driver: Driver, key: str, prompt: list[int], **fields: object) -> Told:
    told = driver.turn(key, prompt, **fields)
    driver.run()
    return told


def test_children_of_one_turn_are_branches_without_cross_talk(driver: Driver) -> None:
    """S3: session cases N01, N02: continuing each branch in turn equals the plain concatenation."""
    root = finished(driver, "root", A)
    contexts = dict.fromkeys(("x", "y"), A + root.ids)
    parents = {"x": "root", "y": "root"}
    for depth in range(3):
        for name in ("x", "y"):
            rid = f"{name}{depth}"
            told = finished(driver, rid, [ord(name), depth], parent=parents[name])
            contexts[name] = contexts[name] + [ord(name), depth]
            assert told.ids == expected(contexts[name], 8)
            contexts[name] = contexts[name] + told.ids
            parents[name] = rid
    assert driver.info().turns == 7


def test_no_parent_is_a_new_root(driver: Driver) -> None:
    """S3: session case N03."""
    finished(driver, "r1", A)
    told = finished(driver, "r2", B, parent=None)
    assert told.end.prompt_tokens == len(B)
    assert told.ids == expected(B, 8)


def test_replace_drops_the_descendants(driver: Driver) -> None:
    """S3: session case N04."""
    first = finished(driver, "r1", A)
    finished(driver, "r2", B, parent="r1")
    finished(driver, "r3", B, parent="r2")
    told = finished(driver, "r4", C, parent="r1", replace=True)
    assert told.ids == expected(A + first.ids + C, 8)
    assert finished(driver, "r5", C, parent="r2").end.reason is Reason.PARENT_UNKNOWN
    assert finished(driver, "r6", C, parent="r3").end.reason is Reason.PARENT_UNKNOWN
    assert driver.info().turns == 2


def test_replace_without_parent_drops_every_turn(driver: Driver) -> None:
    """S3: W10: this killed a scheduler elsewhere."""
    finished(driver, "r1", A)
    finished(driver, "r2", B, parent="r1")
    told = finished(driver, "r3", C, parent=None, replace=True)
    assert told.end.prompt_tokens == len(C)
    assert driver.info().turns == 1


def test_replaced_turn_that_never_commits_drops_nothing(driver: Driver) -> None:
    """S2: history changes only when a turn commits."""
    finished(driver, "r1", A)
    finished(driver, "r2", B, parent="r1")
    driver.turn("r3", C, max_tokens=100, parent=None, replace=True)
    driver.step()
    driver.abort(rids=("r3",))
    assert driver.info().turns == 2
    assert finished(driver, "r4", C, parent="r2").end.outcome is Outcome.LENGTH


def test_replace_of_a_running_turn_goes_on_from_what_it_had(driver: Driver) -> None:
    """S3, S2: session case N05: it is aborted, and the new turn's input takes over its input and output so far."""
    first = finished(driver, "r1", A)
    running = driver.turn("r2", B, max_tokens=100, parent="r1")
    for _ in range(6):
        driver.step()
    told = driver.turn("r3", C, parent="r2", replace=True)
    assert running.end.reason is Reason.SUPERSEDED
    so_far = A + first.ids + B + running.ids
    driver.run()
    assert told.ids == expected(so_far + C, 8)
    assert driver.info().turns == 2
    follow = finished(driver, "r4", B)
    assert follow.ids == expected(so_far + C + told.ids + B, 8)


def test_parent_that_runs_is_refused_without_replace(driver: Driver) -> None:
    """S3: session case N06: and the running turn is unaffected."""
    running = driver.turn("r1", A, max_tokens=20)
    driver.step()
    assert driver.turn("r2", B, parent="r1").end.reason is Reason.PARENT_UNFINISHED
    driver.run()
    assert running.ids == expected(A, 20)


def test_parent_that_runs_can_be_waited_for(driver: Driver) -> None:
    """S6: on_busy queue."""
    running = driver.turn("r1", A, max_tokens=10)
    driver.step()
    told = driver.turn("r2", B, parent="r1", on_busy=OnBusy.QUEUE)
    driver.run()
    assert told.ids == expected(A + running.ids + B, 8)


def test_unknown_parent_is_refused_and_the_session_unharmed(driver: Driver) -> None:
    """S3, S7: session case N07."""
    finished(driver, "r1", A)
    assert finished(driver, "r2", B, parent="nobody").end.reason is Reason.PARENT_UNKNOWN
    assert finished(driver, "r3", B, parent="r1").end.turn == 2


@pytest.mark.parametrize(
    ("offset", "kept"),
    [(None, 18), (0, 18), (-1, 17), (10, 10), (1000, 18), (-1000, 0), (5, 5)],
)
def test_offset_is_a_python_slice_of_the_restored_context(driver: Driver, offset: int | None, kept: int) -> None:
    """S3: session cases N09–N11."""
    first = finished(driver, "r1", A)
    base = (A + first.ids)[:kept]
    told = finished(driver, "r2", B, parent="r1", offset=offset)
    assert told.end.prompt_tokens == kept + len(B)
    assert told.ids == expected(base + B, 8)
    follow = finished(driver, "r3", C, parent="r2")
    assert follow.ids == expected(base + B + told.ids + C, 8)


def test_drop_previous_output(driver: Driver) -> None:
    """S3: session cases N12, N13."""
    finished(driver, "r1", A)
    told = finished(driver, "r2", B, parent="r1", drop_previous_output=True)
    assert told.ids == expected(A + B, 8)
    told = finished(driver, "r3", B, parent="r1", drop_previous_output=True, offset=-2)
    assert told.ids == expected(A[:-2] + B, 8)


def test_leading_bos_of_an_appended_input_is_removed() -> None:
    """S4: session case N14."""
    driver = Driver(bos_id=5)
    driver.open(mode=SessionMode.TREE)
    root = finished(driver, "r1", [5, *A])
    assert root.end.prompt_tokens == len(A) + 1
    told = finished(driver, "r2", [5, *B], parent="r1")
    assert told.ids == expected([5, *A, *root.ids, *B], 8)


def test_empty_input_goes_on_with_the_restored_prompt(driver: Driver) -> None:
    """S4: session cases N15, N16."""
    first = finished(driver, "r1", A)
    told = finished(driver, "r2", [], parent="r1")
    assert told.end.prompt_tokens == len(A) + 8
    assert told.ids == expected(A + first.ids, 8)
    assert finished(driver, "r3", [], parent=None).end.reason is Reason.INVALID


def test_tree_is_restored_from_the_store(driver: Driver) -> None:
    """S1, T4: a new owner sees the same tree."""
    first = finished(driver, "r1", A)
    finished(driver, "r2", B, parent="r1")
    other = Driver()
    other.store = driver.store
    told = finished(other, "r3", C, parent="r1")
    assert told.ids == expected(A + first.ids + C, 8)


@pytest.mark.parametrize("kept", [17, 18, 19])
def test_a_turn_that_diverges_in_the_page_that_is_not_full_shares_the_full_ones(kept: int) -> None:
    """S3, K1: 19 of 20 tokens have KV: 4 full pages of 4, and 3 tokens of the fifth."""
    driver = Driver(page_size=4, max_step_tokens=64)
    driver.open(mode=SessionMode.TREE)
    first = driver.turn("r1", list(range(16)), 4)
    driver.run()
    context = list(range(16)) + first.ids
    told = driver.turn("r2", [200, 201], 4, offset=kept)
    driver.run()
    assert told.ids == expected([*context[:kept], 200, 201], 4)
    assert told.end.cached_tokens == (19 if kept == 19 else 16)
