"""Incidents of a cluster, one file each in tests/scenarios: a cluster in one thread, on simulated time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sim import session_verbs, verbs
from tests.sim.script import VERBS, play, read

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("*.txt"))
VERB_MODULES = {verbs.__name__, session_verbs.__name__}
REWRITE = os.environ.get("REMORA_REWRITE") == "1"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    """The rules named in the file's prose. Rewrite expectations with REMORA_REWRITE=1, and read the diff."""
    play(path, rewrite=REWRITE)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_begins_with_prose(path: Path) -> None:
    """Each file says first which incident it pins down."""
    blocks = read(path.read_text(encoding="utf-8"))
    assert blocks[0].prose[0].startswith("# ")


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 16


def test_every_verb_says_how_it_is_used() -> None:
    assert len(VERBS) > 15
    for name, handler in VERBS.items():
        assert handler.__module__ in VERB_MODULES
        assert (handler.__doc__ or "").startswith(name), f"{handler.__module__}: {name}"
