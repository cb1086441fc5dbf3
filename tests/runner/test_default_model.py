"""The default model in float32 against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from actors.model.source import ModelFolder
from actors.runner.torch.runner import TorchRunner
from tests.engine.driver import Driver
from tests.runner import tiny
from tests.runner.ranks_rig import Helpers

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

NUM_TOKENS = 120


@pytest.fixture(scope="module")
def prompts(default_folder: ModelFolder) -> list[list[int]]:
    """About 30, 60 and 120 tokens; the last two begin alike."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(default_folder.path)
    start = "A lighthouse keeper wrote in his diary every evening, and on the last page he explained why. "
    texts = (
        "Write a short story about a heron and a fox who share a pond.",
        start + "It began like this:",
        start + "Some pages were about the weather, some about ships, and a few about nothing at all. " * 3,
    )
    return [tokenizer(text)["input_ids"] for text in texts]


@pytest.mark.parametrize(("kv_tokens", "max_step_tokens", "depth"), [(4096, 256, 0), (384, 23, 1)])
def test_greedy_tokens_equal_transformers(
    default_folder: ModelFolder,
    default_model: Any,
    prompts: list[list[int]],
    kv_tokens: int,
    max_step_tokens: int,
    depth: int,
) -> None:
    """I3: at ease, and then in odd chunks, overlapped and preempted; each with a prefix found in the cache after."""
    runner = TorchRunner(default_folder.path, dtype="float32", kv_tokens=kv_tokens, threads=1)
    driver = Driver(runner, max_step_tokens=max_step_tokens, depth=depth)
    told = tiny.generate(driver, prompts, NUM_TOKENS)
    (again,) = tiny.generate(driver, prompts[2:], 4, "again")
    for ids, answer in zip(prompts, told, strict=True):
        assert len(answer.ids) == NUM_TOKENS
        tiny.assert_greedy(default_model, ids, answer.ids)
    assert again.ids == told[2].ids[:4]
    assert again.end is not None
    assert again.end.cached_tokens >= len(prompts[2]) // runner.info.page_size * runner.info.page_size - 16
    assert (driver.engine.snapshot().preemptions > 0) == (kv_tokens == 384)
    runner.close()


def test_three_ranks_say_what_one_process_says(
    default_folder: ModelFolder, prompts: list[list[int]], ranks: Helpers
) -> None:
    """I3: its nine heads and three KV heads over three processes, in odd chunks and overlapped: token for token."""
    alone = TorchRunner(default_folder.path, dtype="float32", kv_tokens=2048)
    expected = [told.ids for told in tiny.generate(Driver(alone, max_step_tokens=64), prompts[:2], 40)]
    alone.close()
    with ranks.runner(Path(default_folder.path), 3, kv_tokens=2048) as runner:
        driver = Driver(runner, max_step_tokens=23, depth=1)
        got = [told.ids for told in tiny.generate(driver, prompts[:2], 40)]
    assert got == expected
