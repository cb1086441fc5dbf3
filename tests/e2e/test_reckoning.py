"""The arithmetic of a churn: it must notice what is left and what does not add up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.e2e.census import Census, descendants, parent_of, processes
from tests.e2e.reckoning import MIB, differences, story

LENGTH = ("length", "", "decode")
GONE = ("abort", "client_disconnect", "decode")
CLOSED = ("abort", "session_closed", "waiting")


def census(received: int = 0, ends: dict[tuple[str, str, str], int] | None = None, **held: int) -> Census:
    worker = {"live": 0, "session-held pages": 0, "resident bytes": 100 * MIB, **held}
    return Census(
        held={"w": worker},
        counted={"w": {"steps": received}},
        received={"ingress": received, "w": received},
        ends={"ingress": Counter(ends or {}), "w": Counter(ends or {})},
    )


BEFORE = census(5, {LENGTH: 5})
AFTER = census(15, {LENGTH: 12, GONE: 2, CLOSED: 1})
HEARD = Counter({"length": 6, "abort": 1, "left": 4})


def test_nothing_is_reported_when_all_is_back_and_adds_up() -> None:
    """E6: ends that nobody heard are of clients that left; those that never arrived are not missed."""
    told = story(BEFORE, AFTER, HEARD)
    assert differences(BEFORE, AFTER, HEARD) == []
    assert (told.sent, told.answered, told.received, told.never_arrived) == (11, 7, 10, 1)
    assert told.surplus == Counter({"length": 1, "client_disconnect": 2, "abort": 0})


@pytest.mark.parametrize(
    ("after", "heard", "complaint"),
    [
        (census(15, {LENGTH: 12, GONE: 2, CLOSED: 1}, live=1), HEARD, "live 0 before, 1 after"),
        (census(15, {LENGTH: 12, GONE: 2, CLOSED: 1}, **{"session-held pages": 3}), HEARD, "with every session closed"),
        (census(15, {LENGTH: 12, GONE: 2, CLOSED: 1}, **{"resident bytes": 300 * MIB}), HEARD, "resident bytes"),
        (census(15, {LENGTH: 12, GONE: 2}), HEARD, "10 requests received, 9 ended"),
        (census(15, {LENGTH: 10, GONE: 5}), HEARD, "heard 1 more ends 'length'"),
        (census(15, {LENGTH: 12, GONE: 2, ("abort", "bored", "decode"): 1}), HEARD, "'bored' is none"),
        (AFTER, Counter({"length": 6, "abort": 1, "left": 2}), "9 requests sent, 10 received"),
    ],
)
def test_what_is_left_or_does_not_add_up_is_reported(after: Census, heard: Counter[str], complaint: str) -> None:
    """E6, K6."""
    assert any(complaint in line for line in differences(BEFORE, after, heard))


def test_memory_may_shrink_and_pages_may_not() -> None:
    shrunk = census(15, {LENGTH: 12, GONE: 2, CLOSED: 1}, **{"resident bytes": 50 * MIB})
    assert differences(BEFORE, shrunk, HEARD) == []
    before = census(5, {LENGTH: 5}, **{"free or prefix pages": 9})
    after = census(15, {LENGTH: 12, GONE: 2, CLOSED: 1}, **{"free or prefix pages": 8})
    assert differences(before, after, HEARD) == ["w: free or prefix pages 9 before, 8 after"]


def test_a_child_process_is_counted_under_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        root = parent_of(child.pid)
        counted = child.pid in set(descendants(root))
        others = processes(root, {child.pid})
        both = processes(root, set())
        child.communicate(b"\n")
    assert root == os.getpid()
    assert counted
    assert sum(held["processes"] for held in both.values()) == 1 + sum(held["processes"] for held in others.values())
