"""The arithmetic of the layers' benchmark, and its sides on a toy engine."""

from __future__ import annotations

import asyncio
import random

import pytest

from configs import RemoraConfig, from_tree
from tests.bench.actor_layer import MODEL, Sample, row, rows_of, same_runner, sample, table
from tests.bench.figures import BenchError, Reply
from tests.bench.in_process import InProcess
from tests.bench.layers import Bare


def reply(sent: float, first: float, ended: float, tokens: int) -> Reply:
    return Reply(sent=sent, first=first, ended=ended, prompt_tokens=4, completion_tokens=tokens, cached_tokens=0)


def test_a_sample_counts_from_the_first_request_to_the_last_end() -> None:
    found = sample([reply(0.0, 0.1, 1.0, 10), reply(0.5, 0.9, 2.0, 30)])
    assert found == Sample(ttft_s=pytest.approx(0.25), tok_s=pytest.approx(20.0))


def test_what_is_added_is_measured_within_each_repeat() -> None:
    """A repeat in which the machine was slow for all says nothing against the layer."""
    bare = [Sample(0.1, 100.0), Sample(0.9, 10.0), Sample(0.1, 100.0)]
    actor = [Sample(0.104, 98.0), Sample(0.904, 9.8), Sample(0.104, 98.0)]
    at = row(1, "actor", actor, bare)
    assert at["ttft_added_ms"] == pytest.approx(4.0)
    assert at["share"] == pytest.approx(0.98)
    assert at["holds"] is True


@pytest.mark.parametrize(
    ("streams", "added_s", "share", "holds"),
    [(1, 0.006, 1.0, False), (8, 0.006, 1.0, True), (1, 0.001, 0.94, False), (8, 0.001, 0.94, False)],
)
def test_the_bounds(streams: int, added_s: float, share: float, holds: bool) -> None:
    assert row(streams, "actor", [Sample(0.1 + added_s, 100 * share)], [Sample(0.1, 100.0)])["holds"] is holds


def test_the_model_is_computed_by_what_the_product_chooses() -> None:
    settings = from_tree(RemoraConfig, MODEL)
    assert settings.workers == RemoraConfig().workers
    assert settings.engine.max_step_tokens == RemoraConfig().engine.max_step_tokens


def test_layers_that_compute_by_different_runners_are_not_compared() -> None:
    assert same_runner("fused, 2 threads", "fused, 2 threads") == "fused, 2 threads"
    with pytest.raises(BenchError, match="in the worker: torch"):
        same_runner("fused, 2 threads", "torch")


def test_only_the_actors_row_is_judged() -> None:
    slow = [Sample(1.0, 1.0)]
    lines = table(rows_of(1, {"in process": [Sample(0.1, 9.0)], "actor": slow, "http": slow})).split("\n")
    assert [line.endswith("OVER") for line in lines[1:]] == [False, True, False]


def test_the_bare_layer_answers_all_to_the_last_token() -> None:
    engine = InProcess(from_tree(RemoraConfig, {"workers": {"runner": "toy"}, "engine": {"kv_tokens": 4096}}))
    try:
        replies = asyncio.run(Bare(engine).answer(random.Random(1), 3, 20, 5))
    finally:
        engine.close()
    assert [(one.prompt_tokens, one.completion_tokens) for one in replies] == [(20, 5)] * 3
