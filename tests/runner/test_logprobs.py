"""Log probabilities of the torch runner, against Hugging Face transformers in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.messages import SamplingParams
from actors.runner.torch.choose import settle
from actors.runner.torch.inputs import ScoredRows, StepInputs
from actors.runner.torch.sampler import told_logprobs
from kernels.attention import AttnBatch
from tests.engine.driver import Driver
from tests.runner import tiny

Saved = Callable[[str], tuple[Path, Any]]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=24, logprobs=3),
        SamplingParams(max_tokens=24, logprobs=3, temperature=1.3, top_p=0.9, seed=5),
        SamplingParams(max_tokens=24, logprobs=3, repetition_penalty=1.5, logit_bias=((7, 50.0),), min_tokens=24),
    ],
    ids=["greedy", "sampled", "adjusted"],
)
def test_they_are_the_models_own(saved: Saved, depth: int, sampling: SamplingParams) -> None:
    """Before temperature, penalties, bias and filters, whatever these then chose."""
    folder, model = saved("qwen2")
    prompt = tiny.prompt(20)
    runner = tiny.runner(folder)
    driver = Driver(runner, depth=depth)
    told = driver.submit("a", prompt, sampling=sampling)
    other = driver.submit("b", tiny.prompt(9), 24)
    driver.run()
    runner.close()
    assert other.logprobs == []
    with torch.inference_mode():
        theirs = model(torch.tensor([prompt + told.ids])).logits[0].log_softmax(-1)
    assert len(told.logprobs) == len(told.ids)
    for at, (token, (own, top)) in enumerate(zip(told.ids, told.logprobs, strict=True), len(prompt) - 1):
        assert own == pytest.approx(float(theirs[at, token]), abs=1e-3)
        assert [value for _, value in top] == pytest.approx(theirs[at].topk(3).values.tolist(), abs=1e-3)
        assert all(value == pytest.approx(float(theirs[at, token_id]), abs=1e-3) for token_id, value in top)


def test_no_more_than_there_are_tokens() -> None:
    logprobs = torch.tensor([0.1, 0.7, 0.2]).log()
    own, top = told_logprobs(logprobs, 2, 20)
    assert own == pytest.approx(float(logprobs[2]))
    assert [token for token, _ in top] == [1, 2, 0]
    assert told_logprobs(logprobs, 0, 0)[1] == ()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("begin", [0, 7])
def test_those_of_a_prompt_are_the_models_own(saved: Saved, depth: int, begin: int) -> None:
    """In chunks, with other requests in the same steps, and with what is cached of it."""
    folder, model = saved("qwen2")
    prompt = tiny.prompt(40)
    runner = tiny.runner(folder)
    driver = Driver(runner, depth=depth)
    driver.submit("before", prompt, 4)
    driver.run()
    asked = SamplingParams(max_tokens=0, logprobs=3, logprob_ids=(5, 1), prompt_logprobs_from=begin)
    told = driver.submit("a", prompt, sampling=asked)
    other = driver.submit("b", tiny.prompt(9), 24)
    driver.run()
    alone = driver.submit("c", tiny.prompt(9), 24)
    driver.run()
    runner.close()
    assert other.ids == alone.ids
    with torch.inference_mode():
        theirs = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert [token for token, _ in told.scores] == prompt[begin:]
    assert begin or told.scores[0] == (prompt[0], None)
    for at, (token, score) in list(enumerate(told.scores, begin - 1))[begin == 0 :]:
        assert score is not None
        own, top = score
        assert own == pytest.approx(float(theirs[at, token]), abs=1e-3)
        assert [value for _, value in top[:3]] == pytest.approx(theirs[at].topk(3).values.tolist(), abs=1e-3)
        assert [token_id for token_id, _ in top[3:]] == [5, 1]
        assert all(value == pytest.approx(float(theirs[at, token_id]), abs=1e-3) for token_id, value in top)


def test_a_prompt_with_numbers_that_are_none_fails_alone() -> None:
    """E1: NaN is not told, and what else is in the step goes on."""
    rows = [ScoredRows(1, [0, 1], SamplingParams(logprobs=0)), ScoredRows(2, [2], SamplingParams(logprobs=0))]
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, float("nan"), 0.0], [3.0, 2.0, 1.0]])
    inputs = StepInputs(
        uids=[1, 2],
        tokens=torch.zeros(3, dtype=torch.int64),
        positions=torch.arange(3),
        wanted=torch.arange(3),
        batch=AttnBatch([2, 1], [2, 1], torch.zeros((2, 1), dtype=torch.int64), torch.arange(3), 1),
        pending=[],
        samples=[],
        scored=rows,
    )
    result = settle(logits, inputs, {}, frozenset(), None)
    assert set(result.failed) == {1}
    assert [own for own, _ in result.scores[2]] == pytest.approx([float(logits[2].log_softmax(-1)[2])])
