"""What the directory costs: the same per turn among many sessions as among few, and per change what it moves.

`python -m tests.simulate --directory` prints the figures at a million sessions.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from cluster.placement import Directory
from tests.simulate.directory import bytes_per_session, change, fastest, filled, look_up

SMALL, LARGE, WORKERS = 10_000, 200_000, 100
MOST_BYTES = 420
"""Per session, with ids as long as UUIDs."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def no_collections() -> Iterator[None]:
    """The collector walks all seats whenever it likes: not the directory's doing."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def small() -> Directory:
    return filled(Directory, SMALL, WORKERS)


@pytest.fixture(scope="module")
def large() -> Directory:
    return filled(Directory, LARGE, WORKERS)


def test_a_turn_costs_the_same_among_many_sessions(small: Directory, large: Directory) -> None:
    """P1: a table, looked up in constant time. A larger table misses the processor's caches more often."""
    assert fastest(look_up(large)) < 8 * fastest(look_up(small))


def test_one_change_costs_the_same_among_many_sessions(small: Directory, large: Directory) -> None:
    assert fastest(change(large, WORKERS)) < 8 * fastest(change(small, WORKERS))


def test_a_worker_that_goes_costs_what_it_owned(large: Directory) -> None:
    """P1: removing one moves only its own."""
    began = time.process_time()
    moved = sum(len(large.remove_worker(f"worker-{number:08x}")) for number in range(10, 20))
    each = (time.process_time() - began) / moved
    assert moved == 10 * LARGE // WORKERS
    assert each < fastest(lambda: filled(Directory, SMALL, WORKERS)) / SMALL, "more than to seat a session"


def test_sessions_fit_in_the_memory_that_is_stated() -> None:
    assert bytes_per_session(Directory, 20_000) < MOST_BYTES
