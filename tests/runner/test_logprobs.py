"""Log probabilities of the torch runner, against Hugging Face transformers in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.messages import SamplingParams
from actors.runner.torch.sampler import told_logprobs
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
