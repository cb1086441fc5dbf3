"""The engine's micro-benchmarks run, and tell what they are to tell; how fast it is here is nobody's promise."""

from __future__ import annotations

import pytest

from tests.bench.engine_step import Load, measure, row, table
from tests.bench.turn_cost import Shape, Talk, growth


def test_a_step_under_load_is_measured() -> None:
    times = measure(Load(running=4, waiting=6, sessions=3), steps=5)
    assert len(times.plan) == len(times.commit) == len(times.rest) == len(times.look) == 5
    found = row(Load(4, 6, 3), times, alone_us=1.0)
    assert found["both"] >= found["plan"] > 0
    assert len(table([found]).split("\n")) == 2


def test_turns_are_run_to_their_ends() -> None:
    talk = Talk(Shape(sessions=2, turns=3, new_tokens=20, output_tokens=4))
    assert all(talk.round(number) > 0 for number in range(3))


def test_growth_leaves_out_the_very_first_round() -> None:
    assert growth([9.0, 1.0, 2.0, 3.0, 4.0], compared=2) == pytest.approx((1.5, 3.5, 3.5 / 1.5))
