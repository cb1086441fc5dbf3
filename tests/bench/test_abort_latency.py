"""The arithmetic of the abort benchmark."""

from __future__ import annotations

import pytest

from configs import RemoraConfig, from_tree
from tests.bench.abort_latency import MODEL, quantile, row, table
from tests.bench.abort_stages import Sample


def sample(late_ms: list[float], step_ms: float = 20.0) -> Sample:
    return Sample([late / 1000 for late in late_ms], [0.002] * len(late_ms), [step_ms / 1000] * len(late_ms))


@pytest.mark.parametrize(
    ("count", "share", "expected"), [(1, 0.99, 1), (30, 0.99, 30), (100, 0.99, 99), (100, 0.5, 50), (200, 0.99, 198)]
)
def test_quantiles_are_values_that_were_measured(count: int, share: float, expected: int) -> None:
    assert quantile([float(value) for value in range(1, count + 1)], share) == expected


def test_the_bound_is_a_step_and_a_tenth_of_a_second() -> None:
    """A6."""
    at = row("decode", sample([10.0] * 99 + [119.0]))
    assert (at["n"], at["holds"]) == (100, True)
    assert at["bound_ms"] == pytest.approx(120.0)
    assert row("decode", sample([10.0] * 98 + [121.0, 121.0]))["holds"] is False


def test_the_model_is_computed_by_what_the_product_chooses() -> None:
    """A6: the step that an abort may have to wait for is the one that users have."""
    settings = from_tree(RemoraConfig, MODEL)
    assert settings.workers == RemoraConfig().workers
    assert settings.engine.max_step_tokens == RemoraConfig().engine.max_step_tokens


def test_what_is_over_the_bound_is_marked() -> None:
    """A6."""
    lines = table([row("fast", sample([30.0] * 10)), row("slow", sample([300.0] * 10))]).split("\n")
    assert "OVER" not in lines[1]
    assert lines[2].startswith("slow")
    assert lines[2].endswith("OVER THE BOUND")
