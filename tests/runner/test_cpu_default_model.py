"""The default model by the cpu runner, against transformers: token for token in float32, and nearly so in bf16."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from actors.model.source import ModelFolder
from tests.engine.driver import Driver
from tests.kernels.cpu.builds import unusable
from tests.runner import tiny

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

NUM_TOKENS = 150


@pytest.fixture(scope="module")
def prompts(default_folder: ModelFolder) -> list[list[int]]:
    """About 15 and 300 tokens; the second is longer than a chunk of keys."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(default_folder.path)
    texts = (
        "Write a short story about a heron and a fox who share a pond.",
        "A lighthouse keeper wrote in his diary every evening, and on the last page he explained why. " * 15,
    )
    return [tokenizer(text)["input_ids"] for text in texts]


@pytest.mark.parametrize(("kv_tokens", "max_step_tokens", "depth"), [(4096, 256, 0), (640, 23, 1)])
def test_greedy_tokens_equal_transformers(
    default_folder: ModelFolder,
    default_model: Any,
    prompts: list[list[int]],
    kv_tokens: int,
    max_step_tokens: int,
    depth: int,
) -> None:
    """I3: at ease, and then in odd chunks, overlapped and preempted."""
    if why := unusable("float32"):
        pytest.skip(why)
    runner = tiny.cpu_runner(default_folder.path, kv_tokens=kv_tokens)
    told = tiny.generate(Driver(runner, max_step_tokens=max_step_tokens, depth=depth), prompts, NUM_TOKENS)
    for ids, answer in zip(prompts, told, strict=True):
        assert len(answer.ids) == NUM_TOKENS
        tiny.assert_greedy(default_model, ids, answer.ids)
    runner.close()


@pytest.mark.parametrize(
    ("dtype", "quantization", "share", "most"),
    [("bfloat16", "", 0.05, 0.5), ("bfloat16", "int8", 0.1, 1.0), ("float32", "int8", 0.1, 1.0)],
)
def test_rounded_arithmetic_says_what_float32_finds_likely(
    default_folder: ModelFolder,
    default_model: Any,
    prompts: list[list[int]],
    dtype: str,
    quantization: str,
    share: float,
    most: float,
) -> None:
    """Where it says another token than the likeliest, which is seldom, that one is nearly as likely."""
    if why := unusable(dtype, quantization):
        pytest.skip(why)
    runner = tiny.cpu_runner(default_folder.path, dtype=dtype, quantization=quantization)
    told = tiny.generate(Driver(runner), prompts, NUM_TOKENS)
    runner.close()
    for ids, answer in zip(prompts, told, strict=True):
        with torch.inference_mode():
            logits = default_model(torch.tensor([[*ids, *answer.ids]])).logits[0, len(ids) - 1 : -1]
        short = logits.max(dim=1).values - logits.gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
        assert (short > 0).float().mean() < share
        assert short.max() < most
