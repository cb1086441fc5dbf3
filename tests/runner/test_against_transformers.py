"""Our decoder, its paged KV and the engine together, against Hugging Face transformers in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.engine.plan import PlanItem, StepPlan
from actors.messages import SamplingParams
from actors.model.card import ModelCard
from actors.model.weights import Weights
from actors.runner.torch.decoder import Decoder
from actors.runner.torch.inputs import build_inputs
from kernels.attention import AttnConfig
from kernels.selection import select_backend
from tests.engine.driver import Driver
from tests.runner import tiny

Saved = Callable[[str], tuple[Path, Any]]
PAGE = 16
NUM_TOKENS = 200


def logits_of(folder: Path, ids: list[int], chunk: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Logits [len(ids), vocab_size] of our decoder, computed `chunk` tokens at a time over paged KV."""
    card = ModelCard.read(folder)
    with Weights(folder, dtype) as weights:
        decoder = Decoder(card, weights, torch.device("cpu"))
    device, scale = torch.device("cpu"), card.head_dim**-0.5
    shape = AttnConfig(card.num_heads, card.num_kv_heads, card.head_dim, dtype, device, PAGE, scale)
    attention, _ = select_backend(shape)
    pages = list(range(-(-len(ids) // PAGE) + 1, 1, -1))
    kv = torch.zeros(card.num_layers, 2, len(pages) + 2, PAGE, card.num_kv_heads, card.head_dim, dtype=dtype)
    rows = []
    for start in range(0, len(ids), chunk):
        tokens = ids[start : start + chunk]
        item = PlanItem(1, start, len(tokens), tokens, pages, True, False, SamplingParams(), 0, len(ids))
        inputs = build_inputs(StepPlan(1, (item,)), PAGE)
        attention.plan(inputs.batch)
        everything = torch.arange(len(tokens))
        rows.append(decoder.forward(inputs.tokens, inputs.positions, everything, attention, inputs.batch, kv))
    return torch.cat(rows)


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_logits_equal_transformers(saved: Saved, kind: str) -> None:
    """Every family, rope and bias: prefilled whole, in odd chunks, and token by token."""
    folder, model = saved(kind)
    ids = tiny.prompt(150)
    with torch.inference_mode():
        theirs = model(torch.tensor([ids])).logits[0]
    for chunk in (150, 7, 1):
        ours = logits_of(folder, ids, chunk)
        assert ours.dtype is torch.float32
        assert (ours - theirs).abs().max() < 2e-4, f"chunks of {chunk}"


@pytest.mark.parametrize(("dtype", "cap"), [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
@pytest.mark.parametrize("kind", ["llama", "llama-biases", "qwen3"])
def test_logits_in_half_precision_are_near_transformers_in_float32(
    saved: Saved, kind: str, dtype: torch.dtype, cap: float
) -> None:
    """bf16 goes through packed weights, fp16 does not; both follow float32 as far as their precision goes."""
    folder, model = saved(kind)
    ids = tiny.prompt(100)
    with torch.inference_mode():
        theirs = model(torch.tensor([ids])).logits[0]
    ours = logits_of(folder, ids, 33, dtype)
    assert (ours - theirs).norm() / theirs.norm() < cap


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_greedy_tokens_equal_transformers_under_chunking_sharing_preemption_and_overlap(
    saved: Saved, kind: str
) -> None:
    """I3, K3, K4: the hardest schedule there is, for every family."""
    folder, model = saved(kind)
    tiny.assert_greedy_on_the_hardest_schedule(tiny.runner(folder, kv_tokens=496), model, NUM_TOKENS)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize(("max_step_tokens", "kv_tokens"), [(256, 4096), (7, 4096), (64, 496), (5, 496)])
def test_every_schedule_gives_the_same_greedy_tokens(
    saved: Saved, depth: int, prefix_cache: bool, max_step_tokens: int, kv_tokens: int
) -> None:
    """I3: chunk size, prefix reuse, preemption and overlap change nothing."""
    folder, model = saved("llama")
    runner = tiny.runner(folder, kv_tokens=kv_tokens)
    driver = Driver(runner, max_step_tokens=max_step_tokens, depth=depth, prefix_cache=prefix_cache)
    prompts = [tiny.prompt(n) for n in (3, 40, 80, 16)]
    for name in ("first", "again"):
        told = tiny.generate(driver, prompts, NUM_TOKENS, name)
        for ids, answer in zip(prompts, told, strict=True):
            tiny.assert_greedy(model, ids, answer.ids)
    stats = driver.engine.snapshot()
    assert (stats.preemptions > 0) == (kv_tokens == 496)
    if kv_tokens == 4096:
        assert (stats.cached_tokens > 0) == prefix_cache
    runner.close()


@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_page_sizes_change_nothing(saved: Saved, page_size: int) -> None:
    folder, model = saved("qwen2")
    runner = tiny.runner(folder, page_size=page_size, kv_tokens=1024)
    prompts = [tiny.prompt(n) for n in (5, 64, 65)]
    for ids, answer in zip(prompts, tiny.generate(Driver(runner, max_step_tokens=50), prompts, 100), strict=True):
        tiny.assert_greedy(model, ids, answer.ids)
    runner.close()


def test_a_session_goes_on_from_its_kept_kv(saved: Saved) -> None:
    """K1, S4: the second turn reuses the first one's KV, and says what a fresh prefill of all ids would."""
    folder, model = saved("mistral")
    runner = tiny.runner(folder)
    driver = Driver(runner, depth=1)
    driver.open("s")
    context: list[int] = []
    for number, length in enumerate((30, 11, 1)):
        new = tiny.prompt(length, seed=number)
        told = driver.turn(f"t{number}", new, sampling=tiny.greedy(60))
        driver.run()
        assert told.end is not None
        assert told.end.cached_tokens in ({len(context) - 1, len(context)} if context else {0})
        tiny.assert_greedy(model, context + new, told.ids)
        context += new + told.ids
    runner.close()


def test_bf16_weights_serve_in_float32(saved: Saved, tmp_path: Path) -> None:
    """dtype is what is asked for, not what the file holds."""
    model = tiny.build("llama").to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    runner = tiny.runner(tmp_path)
    ids = tiny.prompt(20)
    (told,) = tiny.generate(Driver(runner), [ids], 50)
    tiny.assert_greedy(model.float(), ids, told.ids)
    runner.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_serves_any_schedule(saved: Saved, dtype: str) -> None:
    """Chunks that sample nothing, overlap and preemption in bf16 and fp16 on CPU: all tokens come, none breaks."""
    folder, _ = saved("llama-untied")
    runner = tiny.runner(folder, dtype=dtype, kv_tokens=160)
    driver = Driver(runner, max_step_tokens=7, depth=1)
    for told in tiny.generate(driver, [tiny.prompt(40), tiny.prompt(41), tiny.prompt(42)], 50):
        assert len(told.ids) == 50
    runner.close()
