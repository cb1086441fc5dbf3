"""Faults found in review; each goes to the file of its subject when it is mended."""

from __future__ import annotations

import pytest

from cluster.scaling import QueueAge


@pytest.mark.xfail(strict=True, reason="what never waits (refused, joined, parked turns) counts as received, too")
def test_requests_that_never_queue_do_not_make_the_queue_young() -> None:
    """T5, P3: one request has waited for 10 s, while others came, were refused, and went."""
    age = QueueAge()
    age.heard(0.0, received=1, waiting=1)
    assert age.heard(10.0, received=6, waiting=1) == 10.0
