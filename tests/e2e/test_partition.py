"""A worker cut off by the network, for real: network namespaces, a cable between them, raylets on both sides."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e import netns

WITHIN_S = 280.0


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_worker_that_is_cut_off_is_given_up_and_comes_back_as_another(tmp_path: Path) -> None:
    """T1, T3, T4, T6, P1: for longer than `dead_s`. Turns that ran there are run again unseen, resumed, or end
    `worker_lost`; its sessions go on elsewhere with their whole history under the next epoch; it ends its requests by
    itself; what it stores too late counts for nothing; once the cable is mended it ends and another takes its place; no
    turn is lost or there twice, and nothing is left. See `partition_story`."""
    if netns.why_not():
        pytest.skip(netns.why_not())
    status, printed = netns.run_alone([sys.executable, "-m", "tests.e2e.partition_story", str(tmp_path)], WITHIN_S)
    print(printed)
    assert status == 0


def test_two_networks_can_be_parted_and_joined(tmp_path: Path) -> None:
    """The rig itself: what is sent while the cable is cut vanishes without a word, and nobody is told."""
    if netns.why_not():
        pytest.skip(netns.why_not())
    status, printed = netns.run_alone([sys.executable, "-m", "tests.e2e.netns", "try"], 60)
    assert (status, printed.split()) == (0, ["heard", "silence", "heard"]), printed
