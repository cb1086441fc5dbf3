"""I3: what a request samples depends on it alone, through the engine on a tiny model in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.messages import Outcome, SamplingParams
from tests.engine.driver import Driver
from tests.runner import tiny

Saved = Callable[[str], tuple[Path, Any]]
NUM_TOKENS = 80

PLAIN = SamplingParams(max_tokens=NUM_TOKENS, temperature=1.0, seed=11, ignore_eos=True)
NUCLEUS = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.8, top_p=0.9, top_k=50, seed=12, ignore_eos=True)
PENALISED = SamplingParams(
    max_tokens=NUM_TOKENS,
    temperature=1.2,
    min_p=0.02,
    repetition_penalty=1.1,
    presence_penalty=0.5,
    frequency_penalty=0.2,
    logit_bias=((30, 4.0), (31, -100.0)),
    seed=13,
    ignore_eos=True,
)
GREEDY_PENALISED = SamplingParams(max_tokens=NUM_TOKENS, repetition_penalty=1.3, frequency_penalty=0.3, ignore_eos=True)
REQUESTS = [(tiny.prompt(9), PLAIN), (tiny.prompt(30), NUCLEUS), (tiny.prompt(17), PENALISED)]
REQUESTS += [(tiny.prompt(40), GREEDY_PENALISED), (tiny.prompt(9), PLAIN)]


def run(folder: Path, requests: list[tuple[list[int], SamplingParams]], **settings: Any) -> tuple[list[list[int]], int]:
    """(outputs, preemptions)."""
    runner = tiny.runner(folder, kv_tokens=settings.pop("kv_tokens", 4096))
    driver = Driver(runner, **settings)
    told = [driver.submit(f"r{i}", ids, sampling=sampling) for i, (ids, sampling) in enumerate(requests)]
    driver.run(steps=20_000)
    runner.close()
    return [answer.ids for answer in told], driver.engine.snapshot().preemptions


@pytest.fixture(scope="module")
def alone(saved: Saved) -> list[list[int]]:
    """Each request by itself."""
    folder, _ = saved("llama-untied")
    return [run(folder, [request])[0][0] for request in REQUESTS]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(("max_step_tokens", "kv_tokens"), [(256, 4096), (7, 4096), (32, 208), (6, 208)])
def test_neither_batch_nor_chunks_nor_preemption_nor_overlap_change_what_is_sampled(
    saved: Saved, alone: list[list[int]], depth: int, max_step_tokens: int, kv_tokens: int
) -> None:
    folder, _ = saved("llama-untied")
    outputs, preemptions = run(folder, REQUESTS, depth=depth, max_step_tokens=max_step_tokens, kv_tokens=kv_tokens)
    assert outputs == alone
    assert (preemptions > 0) == (kv_tokens == 208)


def test_the_settings_do_something(alone: list[list[int]]) -> None:
    """Same prompt and seed: same tokens; the bias is felt; nothing is constant."""
    assert alone[0] == alone[4]
    assert 30 in alone[2]
    assert 31 not in alone[2]
    assert all(len(set(ids)) > 10 for ids in alone)


def test_another_seed_gives_other_tokens(saved: Saved, alone: list[list[int]]) -> None:
    folder, _ = saved("llama-untied")
    other = SamplingParams(max_tokens=NUM_TOKENS, temperature=1.0, seed=12, ignore_eos=True)
    assert run(folder, [(REQUESTS[0][0], other)])[0][0] != alone[0]


@pytest.mark.parametrize("depth", [0, 1])
def test_eos_ends_unless_it_is_ignored_and_never_before_min_tokens(saved: Saved, depth: int) -> None:
    """E7: a bias makes EOS certain. Only `ignore_eos` lets it pass, and `min_tokens` keeps it from being sampled."""
    folder, _ = saved("llama")
    certain = ((2, 100.0),)
    runner = tiny.runner(folder)
    driver = Driver(runner, depth=depth)
    at_once = driver.submit("at once", [5, 6], sampling=SamplingParams(max_tokens=9, logit_bias=certain))
    passed = driver.submit("passed", [5, 6], sampling=SamplingParams(max_tokens=9, logit_bias=certain, ignore_eos=True))
    later = driver.submit("later", [5, 6], sampling=SamplingParams(max_tokens=9, logit_bias=certain, min_tokens=4))
    driver.run()
    runner.close()
    ends = {told.end.outcome for told in (at_once, later) if told.end is not None}
    assert ends == {Outcome.STOP}
    assert at_once.ids == [2]
    assert passed.ids == [2] * 9
    assert later.ids[4:] == [2]
    assert 2 not in later.ids[:4]
